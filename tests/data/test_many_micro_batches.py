"""Hundreds of micro-batches an update within few open files; and data processes that die."""

import json
import os
import re
import resource
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import DATA, RECIPE, jpegs, write_folders

from bigvit.data import loader
from bigvit.data.batch import Batch
from bigvit.data.sources import open_source
from bigvit.recipe import batch_layout
from bigvit.task import Task

ALONE = replace(
    RECIPE,
    model=replace(RECIPE.model, drop_path=replace(RECIPE.model.drop_path, rate=0.0)),
    batch_size=256,
    data=replace(DATA, train_images=256),
)
"""Of which every image may be a micro-batch."""


def update(root: Path, workers: int) -> list[Batch]:
    """The first one's 256 micro-batches."""
    source, layout = open_source(ALONE.data, "train", root), batch_layout(ALONE, 1, 1)
    assert layout.accumulation == 256
    return next(loader.train_batches(source, ALONE, layout, 0, workers, 0, Task(ALONE).draws))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_folders(tmp_path, "train", jpegs(256))
    return tmp_path


@pytest.fixture
def few_files() -> Iterator[None]:
    """As after `ulimit -n`, with a hundred more than are open already."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most + 100, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.usefixtures("few_files")
def test_an_update_of_256_micro_batches_fits_in_few_open_files(root: Path) -> None:
    """And is what is made without data processes."""
    for one, other in zip(update(root, workers=2), update(root, workers=0), strict=True):
        for name in ("images", "targets", "ids", "slots", "valid", "bad"):
            mine, theirs = getattr(one, name), getattr(other, name)
            assert mine.dtype == theirs.dtype and torch.equal(mine, theirs), name


@pytest.mark.usefixtures("few_files", "own_signals")
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_batch_of_2048_in_micro_batches_of_8_trains_in_few_open_files(tmp_path: Path) -> None:
    """And the line of each update says how many images a core of the data processes makes."""
    from bigvit.train import main

    write_folders(tmp_path, "train", jpegs(2048))
    write_folders(tmp_path, "val", jpegs(4, first=3000))
    large = replace(ALONE, batch_size=2048, data=replace(ALONE.data, train_images=2048))
    (tmp_path / "own.py").write_text(f"from bigvit.recipe import *\nphotos = {large!r}\n")
    options = ("--data-root", tmp_path, "--run-dir", tmp_path / "run", "--engine", "single")
    options += ("--workers", 2, "--micro-batch", 8, "--stop-after", 2, "--log-every", 1)
    assert main([f"{tmp_path}/own.py:photos", *map(str, options)]) == 85
    lines = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    updates = [line for line in lines if line["kind"] == "update"]
    assert len(updates) == 2
    for line in updates:
        assert 0 <= line["waiting"] <= 1 and 10 < line["images_per_core_second"] < 1e5


def children() -> set[int]:
    """Processes that this one started."""
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_data_process_that_is_killed_is_said_in_one_line(root: Path) -> None:
    """As the kernel does it where memory runs out."""
    from bigvit.data.decode import Unread

    source, layout = open_source(ALONE.data, "train", root), batch_layout(ALONE, 1, 1)
    before = children()
    stream = loader.train_batches(source, ALONE, layout, 0, 2, 0, Task(ALONE).draws)
    next(stream)
    for pid in children() - before:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises((Unread, RuntimeError)) as caught:  # at any moment, says torch's handler
        for _ in range(100):
            next(stream)
    error = caught.value
    error = loader.lost(error) if isinstance(error, RuntimeError) else error
    assert isinstance(error, Unread) and "\n" not in str(error)
    said = r"(is killed by signal: Killed|exited unexpectedly); if that was for want of memory, use"
    assert re.search(said, str(error))


def test_another_error_stays_as_it_is() -> None:
    error = RuntimeError("shapes do not fit")
    assert loader.lost(error) is error


@pytest.mark.usefixtures("own_signals")
def test_a_machine_that_cannot_open_files_ends_the_run_with_that_reason(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from bigvit.data.sources.folders import FileSource
    from bigvit.train import main

    opened, reads = FileSource.open, list[int]()

    def opening(source: FileSource, index: int) -> Any:
        reads.append(index)
        if len(reads) == 40:  # in the third update
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
            held = list[int]()
            try:
                while len(held) < 256:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                return opened(source, index)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                for each in held:
                    os.close(each)
        return opened(source, index)

    monkeypatch.setattr(FileSource, "open", opening)
    write_folders(root, "val", jpegs(4, first=300))
    recipe = tmp_path / "own.py"
    small = replace(ALONE, batch_size=16)
    recipe.write_text(f"from bigvit.recipe import *\nphotos = {small!r}\n")
    options = ("--data-root", root, "--run-dir", tmp_path / "run", "--engine", "single")
    assert main([f"{recipe}:photos", *map(str, (*options, "--workers", 0))]) == 1
    said = capfd.readouterr().err
    assert "Too many open files" in said and "Traceback" not in said
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert "Too many open files" in status["reason"] and status["exit_code"] == 1
