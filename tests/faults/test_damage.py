"""A damaged checkpoint is found and named before a weight is changed, and the one before it is
gone on from; a disk that fills, or is read only, costs no checkpoint."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small import TINY, content, differing

from bigvit.checkpoint.run import checkpoints_of
from bigvit.cli import main as bigvit
from bigvit.train import main

FILES = ("manifest.json", "rank_00000.safetensors", "rank_00001.safetensors")


def resume(run: Path, *options: object) -> int:
    words = ("--run-dir", run, "--resume", "auto", "--engine", "single", "--workers", 0, *options)
    return main(["digits_vit", *TINY, *map(str, words)])


@pytest.fixture(scope="module")
def of_two_ranks(warm, tmp_path_factory) -> Path:
    """A run of two ranks at ZeRO-2, stopped with checkpoints of its second and fourth update."""
    run = tmp_path_factory.mktemp("damage") / "run"
    options = ("--sharding", "zero2", "--checkpoint-every", 2, "--stop-after", 4, "--workers", 0)
    done = warm(2, "scripts/train.py", "digits_vit", *TINY, "--run-dir", run, *options)
    assert done.code == 85, done.output
    return run


@pytest.fixture(scope="module")
def gone_back(of_two_ranks, tmp_path_factory) -> Path:
    """The checkpoint of the fifth update of that run, gone on with from its second."""
    run = tmp_path_factory.mktemp("damage") / "gone_back"
    shutil.copytree(of_two_ranks, run)
    shutil.rmtree(checkpoints_of(run)[-1])
    assert resume(run, "--stop-after", 5) == 85
    return checkpoints_of(run)[-1]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[2 * len(data) // 3] ^= 1
    path.write_bytes(data)


def swap(path: Path) -> None:
    path.write_bytes((path.parent.parent / "step_00000002" / path.name).read_bytes())


@pytest.mark.parametrize("damage", [truncate, empty, flip, Path.unlink, swap])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_and_the_checkpoint_before_it_taken(
    name: str,
    damage: Callable[[Path], None],
    of_two_ranks: Path,
    gone_back: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    shutil.copytree(of_two_ranks, run)
    older, newest = checkpoints_of(run)
    damage(newest / name)
    assert bigvit(["verify", str(newest)]) == 2
    assert str(newest / name) in capfd.readouterr().out
    assert resume(run, "--stop-after", 5) == 85
    said = capfd.readouterr().out
    assert f"warning: {newest / name} " in said and f"going back to {older}" in said
    assert differing(checkpoints_of(run)[-1], gone_back) == []


def test_the_list_and_the_verdict(of_two_ranks: Path, tmp_path: Path, capfd) -> None:
    run = tmp_path / "run"
    shutil.copytree(of_two_ranks, run)
    assert bigvit(["verify", str(run)]) == 0
    older, newest = checkpoints_of(run)
    assert capfd.readouterr().out == f"{older} is whole\n{newest} is whole\n"
    truncate(newest / FILES[1])
    assert bigvit(["checkpoints", str(run)]) == 0
    head, first, second = capfd.readouterr().out.splitlines()
    assert head.split() == ["update", "size", "age", "whole"]
    assert first.split()[0] == "2" and first.split()[-1] == "yes"
    assert second.split()[0] == "4" and f"NO: {newest / FILES[1]} is " in second
    assert bigvit(["verify", str(run)]) == 2
    assert "1 of 2 checkpoints are damaged" in capfd.readouterr().err


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "bigvit-test", str(disk)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a file system can only be mounted by root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> None:
    """Leave room for some kilobytes."""
    free = shutil.disk_usage(disk).free
    (disk / "film").write_bytes(bytes(free - 40_000))


@pytest.mark.parametrize("choice", ["stop", "continue"])
@pytest.mark.parametrize("background", [True, False])
def test_a_disk_that_fills_during_a_save(
    choice: str, background: bool, of_two_ranks: Path, small_disk: Path, capfd
) -> None:
    run = small_disk / "run"
    shutil.copytree(of_two_ranks, run)
    fill(small_disk)
    before = content(run / "checkpoints")
    options = ["--stop-after", 23, "--checkpoint-every", 3, "--save-failure", choice]
    options += [] if background else ["--no-background-save"]
    code = resume(run, *options)
    captured = capfd.readouterr()
    said = captured.out + captured.err
    assert "step_00000006 could not be written ([Errno 28] No space left on device" in said
    assert "Traceback" not in said
    assert content(run / "checkpoints") == before
    assert code == 1  # also where it went on: the last checkpoint could not be written
    went_on = "warning: " in said
    assert went_on == (choice == "continue")
    assert ("step_00000023 could not be written" in captured.err) == went_on
    (small_disk / "film").unlink()
    assert resume(run, "--stop-after", 5) == 85
    assert [path.name for path in checkpoints_of(run)][-1] == "step_00000005"


def test_a_disk_that_is_read_only(of_two_ranks: Path, small_disk: Path, capfd) -> None:
    run = small_disk / "run"
    shutil.copytree(of_two_ranks, run)
    before = content(run)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert resume(run, "--stop-after", 5) == 2
    assert f"--run-dir {run}: {run} cannot be written to" in capfd.readouterr().err
    assert content(run) == before
    assert bigvit(["verify", str(run)]) == 0


def test_status_says_why(of_two_ranks: Path, small_disk: Path) -> None:
    run = small_disk / "run"
    shutil.copytree(of_two_ranks, run)
    with (small_disk / "film").open("wb") as file:
        file.write(bytes(4_000_000 - sum(map(len, content(run).values())) - 300_000))
    assert resume(run, "--checkpoint-every", 1, "--keep", 99) == 1
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("error", 1)
    assert "could not be written ([Errno 28]" in status["reason"]
