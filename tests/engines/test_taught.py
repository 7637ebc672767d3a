"""A student learns the same of its teacher under every engine, and nothing of a teacher is kept."""

import json
from pathlib import Path

import pytest
import taught
import tiny
import torch
from reference import distance, train_single, trained
from safetensors import safe_open
from test_equality import ALLOWED, YARDSTICK
from test_resume import assert_equal

from bigvit.checkpoint.manifest import read_manifest, step_name
from bigvit.data.sources import DigitsSource
from bigvit.engines.teacher import Teaching
from bigvit.evaluate import evaluate_checkpoint
from bigvit.export.folder import export
from bigvit.ranks.joining import alone
from bigvit.recipe import Recipe
from bigvit.task import Task, teacher_model

LAST = step_name(tiny.SHORT)


def teaching(recipe: Recipe) -> Teaching:
    """The teacher on this process's device."""
    found = Teaching(recipe, alone(), sharded=False)
    for name, weight in taught.weights(recipe).items():
        found.put(name, weight)
    return found


@pytest.fixture(scope="module")
def reference():
    return train_single(taught.recipe, teacher=teaching(taught.recipe))[0]


@pytest.mark.parametrize("way", taught.WAYS)
def test_an_engine_equals_single(way, two_ranks, reference):
    assert_single(way, two_ranks, reference)


@pytest.mark.slow
def test_the_other_stages_equal_single(two_ranks, reference, warm):
    done = warm(2, Path(__file__).with_name("ranks.py"), two_ranks, "taught_others")
    assert done.code == 0, done.output
    for way in taught.OTHERS:
        assert_single(way, two_ranks, reference)


def assert_single(way, two_ranks, reference):
    found = distance(trained(two_ranks / f"taught {way}", tiny.SHORT), reference)
    print(f"{way}: {found:.2e}, {found / YARDSTICK:.2f} yardsticks")
    assert found <= ALLOWED * YARDSTICK


def test_a_student_with_another_teacher_lies_far_away(reference):
    other = teaching(taught.recipe)
    head = taught.weights(taught.recipe)["head.weight"]
    other.put("head.weight", 1.05 * head)
    apart = distance(train_single(taught.recipe, teacher=other)[0], reference)
    print(f"a head 5 % larger: {apart / YARDSTICK:.0f} yardsticks")
    assert apart > 100 * YARDSTICK


@pytest.mark.parametrize("way", taught.HALVES)
def test_resumed_with_the_same_teacher_under_another_name(way, resumed):
    assert_equal(resumed / f"taught halves {way}", resumed / f"taught {way}", tiny.SHORT)


@pytest.mark.parametrize("way", taught.WAYS)
def test_nothing_of_a_teacher_is_in_a_checkpoint(way, two_ranks):
    """By the names and the bytes of what the files hold: the student's, and no more."""
    folder = two_ranks / f"taught {way}" / "checkpoints" / LAST
    manifest, held = read_manifest(folder), dict[str, int]()
    for file in manifest.files:
        with safe_open(folder / file.name, framework="pt") as opened:
            for key in opened.keys():
                held[key] = held.get(key, 0) + opened.get_tensor(key).nbytes
    own = {name: p.nbytes for name, p in Task(taught.recipe).named_parameters()}
    kinds = ("weight", "exp_avg", "exp_avg_sq")
    assert held == {f"{kind}/{name}": size for name, size in own.items() for kind in kinds}
    digest = json.loads((two_ranks / "asked_0.json").read_text())["none"]["digest"]
    assert manifest.teacher == digest
    described = json.loads((two_ranks / f"taught {way}" / "recipe.json").read_text())
    assert described["teacher"] == digest


def test_a_teacher_that_is_cut_answers_as_one_that_is_whole(two_ranks):
    asked = [json.loads((two_ranks / f"asked_{rank}.json").read_text()) for rank in (0, 1)]
    images = torch.from_numpy(DigitsSource("train").images[:24]).float().view(24, 1, 8, 8) / 16
    expected = teaching(taught.recipe)(images)
    for found in asked:
        for logits in (*found["none"]["logits"], *found["host"]["logits"]):
            torch.testing.assert_close(torch.tensor(logits), expected, rtol=0, atol=1e-6)
        assert found["none"]["digest"] == found["host"]["digest"] == asked[0]["none"]["digest"]
    assert taught.recipe.teacher is not None
    whole = sum(w.nbytes for w in teacher_model(taught.recipe.teacher).state_dict().values())
    cut = [found["host"]["bytes"] for found in asked]
    print(f"bytes: whole {whole:,}, cut {cut}")
    assert max(cut) < 0.6 * whole


@pytest.mark.parametrize("way", [str(way) for way in taught.HELD])
def test_a_student_holds_as_much_with_a_teacher_as_without(way, two_ranks):
    for rank in (0, 1):
        without, with_one = json.loads((two_ranks / f"asked_{rank}.json").read_text())[way]
        print(f"{way}, rank {rank}: {without:,} bytes without, {with_one:,} with a teacher")
        assert with_one == without > 0


def test_its_share_of_the_time_is_logged(two_ranks):
    lines = (two_ranks / "taught 1" / "metrics.jsonl").read_text().splitlines()
    shares = [line["teacher"] for line in map(json.loads, lines) if "loss" in line]
    assert len(shares) == tiny.SHORT and all(0 < share < 1 for share in shares)


def test_what_is_trained_is_evaluated_and_exported_without_its_teacher(two_ranks, tmp_path: Path):
    run = two_ranks / "taught 1"
    assert evaluate_checkpoint(run / "checkpoints" / LAST, 60)["images"] == 300
    export(run / "checkpoints" / LAST, tmp_path / "export")
    with safe_open(tmp_path / "export" / "model.safetensors", framework="pt") as opened:
        assert len(opened.keys()) == len(Task(taught.recipe).model.state_dict())
