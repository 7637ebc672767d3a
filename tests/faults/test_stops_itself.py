"""What a run that stops itself says, and what it knows after it was resumed."""

import json
import shutil
from pathlib import Path

import pytest
from small import TINY

from bigvit.checkpoint.manifest import read_manifest, step_name
from bigvit.checkpoint.sound import newest_sound
from bigvit.ranks.joining import alone
from bigvit.train import main

EVERY = ("--engine", "single", "--workers", "0", "--log-every", "1")
EPOCH = ("--schedule.epochs", "1", "--schedule.warmup-epochs", "0")


def train(run: Path, *options: object, every: int = 2) -> int:
    words = (*TINY, *EVERY, "--checkpoint-every", every, "--run-dir", run, *options)
    return main(["digits_vit", *map(str, words)])


def test_spoiled_weights_are_not_called_good(
    stopped_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(stopped_run, run)
    (run / "stopped_images.txt").mkdir()  # it cannot be written, which hides no reason
    wild = ("--optim.lr", 1e30, "--allow-change", "optim.lr")
    assert train(run, *wild, "--resume", "auto", "--keep", 9, every=1) == 3
    said = capfd.readouterr()
    assert "not finite" in said.err and "Traceback" not in said.err
    good, bad = run / "checkpoints" / "step_00000004", "step_00000005 is not: its weights are of "
    assert f"the last good checkpoint is {good} (" in said.err and bad in said.err
    assert "warning: stopped_images.txt cannot be written for now" in said.out
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("error", 3)
    assert status["reason"] in said.err
    # as the message says: branched off, it goes on
    assert train(tmp_path / "branch", "--resume", good, "--stop-after", 6) == 85


def test_none_is_called_good_where_none_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wild = ("--optim.lr", 1e30, "--schedule.warmup-epochs", 0)
    assert train(tmp_path / "run", *wild, every=1) == 3
    assert "; no checkpoint is good (step_00000001 is not: " in capfd.readouterr().err


def losses(run: Path, values: list[float]) -> None:
    """Let a run's updates have had these losses."""
    lines = [
        {"batch": n, "update": n, "loss": value, "grad_norm": 1.0}
        for n, value in enumerate(values, 1)
    ]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


@pytest.mark.parametrize(
    ("values", "good"),
    [
        ([2.3, 2.2, 2.1, 2.0], 4),
        ([2.3, 2.2, 2.1, 6.0], 4),  # not three times as much
        ([2.3, 2.2, 2.1, 1e5], 2),  # of the weights before it
        ([2.3, 2.2, 2.1, 2.0, 1e5], 2),  # of the last checkpoint's weights
        ([2.3, 2.2, 1e3, 1e5], None),
        ([2.3, 0.01, 0.01, 0.4], 4),  # a bad batch, when nearly all is learned
        ([], 4),
    ],
)
def test_a_loss_that_had_risen(
    values: list[float], good: int | None, stopped_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(stopped_run, run)
    losses(run, values)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"batch": 4, "top1": 50.0}\n{"batch": ')
    found, reasons = newest_sound(run, alone())
    assert found == (None if good is None else run / "checkpoints" / step_name(good))
    assert all("the loss had risen from " in reason for reason in reasons)


def test_the_loss_guard_of_a_resumed_run_stops_as_the_unstopped_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def said() -> str:
        return capfd.readouterr().err.split("; its ")[0]

    guard = (*EPOCH, "--loss-jump", "1.001")  # any loss above the mean is a jump
    assert train(tmp_path / "one", *guard) == 3
    unstopped = said()
    update = int(unstopped.removeprefix("error: update ").split(":")[0])
    assert update > 11 and "(--loss-jump)" in unstopped
    assert train(tmp_path / "two", *guard, "--stop-after", update - 1) == 85
    said()
    assert train(tmp_path / "two", *guard, "--resume", "auto") == 3
    assert said() == unstopped
    last = tmp_path / "two" / "checkpoints" / step_name(update - 1)
    assert len(read_manifest(last).losses) == update - 1


def test_a_run_that_stops_itself_before_its_first_checkpoint_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wild = ("--optim.lr", 1e30, "--schedule.warmup-epochs", 0)
    assert train(tmp_path / "run", *wild, every=1000) == 3
    said = capfd.readouterr().err
    assert "; there is no checkpoint" in said and "Traceback" not in said
