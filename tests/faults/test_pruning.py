"""Old checkpoints that are links, or that cannot be removed."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from small import TINY, content

from bigvit.checkpoint import retention
from bigvit.checkpoint.load import read_weights
from bigvit.checkpoint.run import checkpoints_of
from bigvit.train import main

EVERY = ("--checkpoint-every", "2", "--keep", "1", "--engine", "single", "--workers", "0")


def go_on(run: Path, until: int) -> int:
    options = ("--run-dir", str(run), "--resume", "auto", "--stop-after", str(until))
    return main(["digits_vit", *TINY, *EVERY, *options])


def test_of_a_linked_checkpoint_the_link_goes_alone(
    stopped_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, bigger = tmp_path / "run", tmp_path / "bigger"
    shutil.copytree(stopped_run, run)
    bigger.mkdir()
    shutil.move(run / "checkpoints", bigger / "checkpoints")
    (run / "checkpoints").symlink_to(bigger / "checkpoints")  # the folder, and what is in it
    for path in checkpoints_of(run):
        shutil.move(path, bigger / path.name)
        path.symlink_to(bigger / path.name)
    before = content(bigger / "step_00000002") | content(bigger / "step_00000004")
    dangling = run / "checkpoints" / "step_00000003"
    dangling.symlink_to(tmp_path / "unplugged")
    left = run / "checkpoints" / ".step_00000002.removed.aside"
    left.symlink_to(bigger / "step_00000002")  # by an older bigvit
    assert go_on(run, 6) == 85
    assert "warning" not in capfd.readouterr().out
    assert content(bigger / "step_00000002") | content(bigger / "step_00000004") == before
    assert os.listdir(bigger / "checkpoints") == ["step_00000006"]
    read_weights(bigger / "checkpoints" / "step_00000006")


def test_a_checkpoint_takes_the_name_of_a_link_to_nowhere(
    stopped_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(stopped_run, run)
    (run / "checkpoints" / "step_00000006").symlink_to(tmp_path / "unplugged")
    assert go_on(run, 6) == 85
    (last,) = checkpoints_of(run)
    assert last.name == "step_00000006" and not last.is_symlink()
    read_weights(last)


def test_one_that_cannot_be_removed_is_said_once_and_ends_nothing(
    stopped_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    shutil.copytree(stopped_run, run)
    rename = retention.rename

    def busy(old: Path, new: Path) -> None:
        if old.name == "step_00000004":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(old))
        rename(old, new)

    monkeypatch.setattr(retention, "rename", busy)
    assert go_on(run, 10) == 85
    said = capfd.readouterr()
    stuck = run / "checkpoints" / "step_00000004"
    assert said.out.count(f"warning: {stuck} is old, and cannot be removed ([Errno 16]") == 1
    assert "could not be written" not in said.out + said.err
    assert [path.name for path in checkpoints_of(run)] == ["step_00000004", "step_00000010"]
