"""A run that rolls back ends as one that never saw the batches, to the bit, on every engine; also
where ranks are killed while it does, and others go on."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import rolled

from bigvit.checkpoint.manifest import read_manifest, step_name
from bigvit.checkpoint.run import checkpoints_of
from bigvit.checkpoint.skipped import read_skipped

sys.path.insert(0, str(Path(__file__).parent.parent / "faults"))
from small import differing  # noqa: E402

RANKS = Path(__file__).with_name("ranks.py")
NOISY = Path(__file__).with_name("noisy.py")
MEASURED = ("kind", "batch", "update", "epoch", "loss", "lr", "grad_norm", "top1", "test_loss")


def lines(run: Path) -> list[dict[str, Any]]:
    """What a run logged, but for times."""
    found = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{key: line[key] for key in MEASURED if key in line} for line in found]


def pairs(folder: Path) -> list[Path]:
    return sorted(folder.glob("rolled *"))


def assert_pair(rolled_back: Path, evaluated: bool = True) -> None:
    """One that rolled back, and the one beside it that was told at its start."""
    told = rolled_back.with_name(rolled_back.name.replace("rolled", "told"))
    last = f"checkpoints/{step_name(rolled.STOP)}"
    assert differing(rolled_back / last, told / last) == [], rolled_back.name
    ours, theirs = read_manifest(rolled_back / last), read_manifest(told / last)
    for field in ("batch", "update", "scalars", "losses", "skipped_batches"):
        assert getattr(ours, field) == getattr(theirs, field), (rolled_back.name, field)
    assert ours.skipped_batches == (rolled.INFINITE, rolled.JUMP)
    assert lines(rolled_back) == lines(told), rolled_back.name
    batches = [line["batch"] for line in lines(told) if line["kind"] == "update"]
    assert batches == [n for n in range(1, rolled.STOP + 1) if n not in ours.skipped_batches]
    assert evaluated == any("top1" in line for line in lines(told))


@pytest.fixture(scope="module")
def ordinary(warm, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rolled")
    done = warm(2, RANKS, folder, "rolled", timeout=600)
    assert done.code == 0, done.output
    (folder / "said").write_text(done.output)
    return folder


def test_every_engine_ends_as_if_it_had_never_seen_the_batches(ordinary):
    assert len(pairs(ordinary)) == len(rolled.WAYS)
    for run in pairs(ordinary):
        assert_pair(run)


def test_what_was_skipped_is_written_down_and_said(ordinary):
    run = ordinary / "rolled fp32 2"
    first, second = read_skipped(run).rollbacks
    assert (first.skipped, second.skipped) == (((4, 4),), ((12, 12),))
    assert (first.batch, first.update, first.checkpoint) == (4, 3, None)
    assert (second.batch, second.update, second.checkpoint) == (12, 10, step_name(10))
    assert (first.loss, first.ranks, second.went_back_to) == (None, 2, 10)
    assert second.loss is not None and second.loss_before is not None
    assert second.loss > 3 * second.loss_before
    assert len(second.losses) == 10
    listed = [line.split("\t") for line in (run / second.images).read_text().splitlines()]
    assert listed[0] == ["batch", "image", "class", "name"]
    assert [int(line[1]) for line in listed[1:]] == list(second.ids[0]) and len(listed) == 145
    said = (ordinary / "said").read_text()
    assert f"rolled back, 2 of at most 5 times (--rollbacks): {second.reason}. From now on " in said
    assert f"listed in {run / second.images} (train[" in said
    assert f"Training goes on from {run / 'checkpoints' / step_name(10)}" in said
    assert "Training goes on from the initial weights" in said


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["rolled_more", "rolled_offloaded", "rolled_fp16"])
def test_every_other_arrangement_and_precision(scenario, warm, tmp_path):
    done = warm(2, RANKS, tmp_path, scenario, timeout=900)
    assert done.code == 0, done.output
    assert (
        len(pairs(tmp_path))
        == {"rolled_more": 8, "rolled_offloaded": 2, "rolled_fp16": 5}[scenario]
    )
    for run in pairs(tmp_path):
        assert_pair(run)


# noise in the images, on ranks that are killed ----------------------------------------------------

NOISE = "70,80-81,88"  # where enough is learned for them to be far off
MODEL = ("--model.embed-dim", 32, "--model.depth", 2, "--model.num-heads", 2)
LEARNS = ("--model.layer-scale", 1, "--objectives.0.smoothing", 0, "--schedule.warmup-epochs", 0)
OPTIONS = ("--workers", 1, "--log-every", 1, "--checkpoint-every", 10, "--loss-jump", 1.2)
EPOCHS = ("--schedule.epochs", 4)
ARGS = ("digits_vit", *MODEL, *LEARNS, *EPOCHS, *OPTIONS, "--sharding", "zero2")
BACK = ("--on-jump", "rollback", "--resume", "auto")


@pytest.fixture(scope="module")
def told(warm, tmp_path_factory) -> Path:
    """A run that never sees the noise; stopped after batch 60, to be gone on with elsewhere."""
    run = tmp_path_factory.mktemp("told") / "run"
    words = (*ARGS, "--run-dir", run, "--skip-batches", NOISE)
    assert warm(2, NOISY, NOISE, "never", *words).code == 0
    return run


@pytest.mark.slow
def test_noise_stops_a_run_and_is_rolled_back_past(told, warm, tmp_path):
    stopped = warm(2, NOISY, NOISE, "never", *ARGS, "--run-dir", tmp_path / "stopped")
    assert stopped.codes == (3, 3) and "error: update 70: the loss is " in stopped.output
    done = warm(2, NOISY, NOISE, "never", *ARGS, *BACK, "--run-dir", tmp_path / "run")
    assert done.code == 0, done.output
    assert read_skipped(tmp_path / "run").batches == (70, 80, 81, 88)
    assert differing(checkpoints_of(tmp_path / "run")[-1], checkpoints_of(told)[-1]) == []
    assert lines(tmp_path / "run") == lines(told)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["record", "reload", "fill"])
def test_killed_while_it_rolls_back_it_goes_on_alike(where, told, warm, tmp_path):
    run = tmp_path / "run"
    done = warm(2, NOISY, NOISE, where, *ARGS, *BACK, "--run-dir", run)
    assert done.code not in (0, 3, 85), done.output
    assert read_skipped(run).batches == (() if where == "record" else (70,))
    done = warm(2, NOISY, NOISE, "never", *ARGS, *BACK, "--run-dir", run)
    assert done.code == 0, done.output
    assert differing(checkpoints_of(run)[-1], checkpoints_of(told)[-1]) == []
    assert lines(run) == lines(told)


@pytest.mark.slow
def test_killed_while_it_rolls_back_other_ranks_go_on(warm, tmp_path):
    """Two ranks up to the checkpoint after batch 60, and one from there, with and without a jump;
    the noise is no jump to them, but what the two wrote down."""
    jumped, never = tmp_path / "jumped", tmp_path / "never"
    done = warm(2, NOISY, "70", "reload", *ARGS, *BACK, "--run-dir", jumped)
    assert done.code not in (0, 3, 85), done.output
    words = (*ARGS, "--run-dir", never, "--stop-after", 60)
    assert warm(2, NOISY, "none", "never", *words, "--skip-batches", 70).code == 85
    for run in (jumped, never):
        done = warm(1, NOISY, "70", "never", *ARGS, *BACK, "--run-dir", run)
        assert done.code == 0 and "rolled back," not in done.output, done.output
    assert differing(checkpoints_of(jumped)[-1], checkpoints_of(never)[-1]) == []
