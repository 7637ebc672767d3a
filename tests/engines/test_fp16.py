"""fp16 with dynamic loss scaling: an overflow skips one update, and nothing else."""

import json

import precision
import pytest
import tiny
from reference import distance, trained
from test_resume import assert_equal

from bigvit.checkpoint.manifest import read_manifest, step_name

UPDATES = tiny.SHORT
LAST = step_name(UPDATES)


def lines(run):
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if "loss" in line]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_an_overflow_skips_exactly_one_update(stage, fp16_ranks):
    run = fp16_ranks / f"fp16_{stage}"
    manifest = read_manifest(run / "checkpoints" / LAST)
    assert (manifest.batch, manifest.update) == (UPDATES, UPDATES - 1)
    assert manifest.scalars["optimizer_steps"] == UPDATES - 1
    assert manifest.scalars["loss_scale"] == 2**15
    assert manifest.scalars["good_updates"] == UPDATES - 1 - precision.OVERFLOWS
    logged = lines(run)
    assert [line["batch"] for line in logged] == list(range(1, UPDATES + 1))
    skipped = [line["grad_norm"] is None for line in logged]
    assert skipped == [i == precision.OVERFLOWS for i in range(UPDATES)]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_schedule_counts_updates_and_the_data_batches(stage, fp16_ranks):
    logged = lines(fp16_ranks / f"fp16_{stage}")
    before = [i - (i > precision.OVERFLOWS) for i in range(UPDATES)]
    assert [line["lr"] for line in logged] == [precision.recipe.lr(i) for i in before]
    assert [line["update"] for line in logged] == [
        i + 1 - (i >= precision.OVERFLOWS) for i in range(UPDATES)
    ]
    scales = [line["loss_scale"] for line in logged]
    assert scales == [2.0 ** (16 - (i > precision.OVERFLOWS)) for i in range(UPDATES)]


@pytest.mark.parametrize("stage", precision.RESUMED)
def test_stopped_after_the_overflow_and_resumed(stage, fp16_ranks):
    halves, whole = fp16_ranks / f"fp16_halves_{stage}", fp16_ranks / f"fp16_{stage}"
    assert_equal(halves, whole, updates=UPDATES)


def test_the_loss_is_scaled_at_every_stage(fp16_ranks):
    first = {stage: lines(fp16_ranks / f"fp16_{stage}")[0] for stage in range(4)}
    norm = first[1]["grad_norm"]
    assert norm > 0.05  # what it is in fp32, whatever the scale
    for stage in (0, 2, 3):
        assert first[stage]["grad_norm"] == pytest.approx(norm, rel=1e-2)


def test_stages_are_close_to_each_other_and_to_single_precision(fp16_ranks):
    weights = {stage: trained(fp16_ranks / f"fp16_{stage}", UPDATES) for stage in range(4)}
    for stage in (0, 2, 3):
        print(f"stage {stage}: {distance(weights[stage], weights[1]):.1e}")
        assert distance(weights[stage], weights[1]) < 1e-2


def test_a_gradient_that_stays_infinite_stops_all_with_no_weight_changed(fp16_ranks):
    found = json.loads((fp16_ranks / "fp16_not_a_number.json").read_text())
    assert len(found) == 4
    for stage, (message, skipped, unchanged) in found.items():
        assert "overflows fp16 even at a loss scale of 1" in message, stage
        assert skipped == 16 and unchanged, stage  # from 2**16 down to 1
