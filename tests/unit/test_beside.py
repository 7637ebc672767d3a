# pyright: reportAttributeAccessIssue=false
"""What only watches a run: a write that fails ends nothing, and is made up for."""

import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler

from bigvit.checkpoint import files
from bigvit.checkpoint.files import append
from bigvit.training import board
from bigvit.training.beside import Beside
from bigvit.training.board import Board


class Disk:
    """Something to write to, which may be full."""

    def __init__(self) -> None:
        self.full, self.held = False, list[int]()

    def write(self, value: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.held.append(value)


def test_a_failure_is_said_once_and_made_up_for_in_order() -> None:
    said, disk = list[str](), Disk()
    beside = Beside(said.append)
    for value in range(8):
        disk.full = 2 <= value < 6
        beside.write("metrics.jsonl", lambda value=value: disk.write(value))
    assert disk.held == list(range(8))
    assert [line.split(" (")[0] for line in said] == [
        "warning: metrics.jsonl cannot be written for now",
        "metrics.jsonl is written again",
    ]
    assert "No space left on device" in said[0]


def test_one_file_that_fails_holds_up_no_other() -> None:
    said, full, empty = list[str](), Disk(), Disk()
    full.full = True
    beside = Beside(said.append)
    for value in range(3):
        beside.write("one", lambda value=value: full.write(value))
        beside.write("other", lambda value=value: empty.write(value))
    assert empty.held == [0, 1, 2] and len(said) == 1


@pytest.mark.parametrize("kept", [1, 2])
def test_only_the_newest_writes_wait(kept: int) -> None:
    disk = Disk()
    disk.full = True
    beside = Beside(lambda text: None)
    for value in range(5):
        beside.write("status.json", lambda value=value: disk.write(value), kept=kept)
    disk.full = False
    beside.close()
    assert disk.held == [3, 4][-kept:]


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("a tracker's"), ValueError()])
def test_no_kind_of_error_comes_through_and_what_stays_unwritten_is_said(error: Exception) -> None:
    said = list[str]()

    def fail() -> None:
        raise error

    beside = Beside(said.append)
    beside.write("a tracker", fail)
    beside.close()
    assert said[-1] == "warning: a tracker could not be written to the end" and len(said) == 2


class Filling:
    """`write` of a raw file for which the disk has so many bytes left."""

    def __init__(self, file: object, room: int) -> None:
        self.file, self.room = file, room

    def __getattr__(self, name: str) -> object:
        return getattr(self.file, name)

    def __enter__(self) -> "Filling":
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()  # type: ignore[attr-defined]

    def write(self, data: memoryview) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self.file.write(data[: self.room])  # type: ignore[attr-defined]
        self.room -= taken
        return taken


@pytest.fixture
def nearly_full(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A disk with room for ten bytes; undone, for all."""
    opened = Path.open
    with monkeypatch.context() as patched:
        patched.setattr(files.Path, "open", lambda *a, **k: Filling(opened(*a, **k), 10))
        yield patched


def test_a_line_is_added_whole_or_not_at_all(
    tmp_path: Path, nearly_full: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\n")
    append(file, b"two\n")
    with pytest.raises(OSError, match="No space left"):
        append(file, b"twenty-two bytes long\n")
    assert file.read_bytes() == b"one\ntwo\n"
    nearly_full.undo()
    append(file, b"three\n")
    assert file.read_bytes() == b"one\ntwo\nthree\n"


def drawn(folder: Path, name: str) -> dict[int, float]:
    """What TensorBoard shows."""
    board = EventAccumulator(str(folder))
    board.Reload()
    return {event.step: event.value for event in board.Scalars(name)}


@pytest.mark.parametrize("earlier", [0, 9, 99])
def test_tensorboard_reads_what_was_written_around_a_failure_and_of_the_last_job(
    earlier: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many files the process has written before, in this second too."""
    monkeypatch.setattr(board, "COUNT", itertools.count(earlier))
    first = Board(tmp_path, 1)
    for step in (1, 2, 3):
        first.add([("loss", 10.0 + step), ("norms/a", 0.5)], step, when=step)
    second = Board(tmp_path, 3)
    second.add([("loss", 23.0)], 3, when=4)
    (torn,) = (path for path in tmp_path.iterdir() if path == second.file)
    torn.chmod(0o600)
    whole = torn.read_bytes()
    torn.unlink()
    torn.mkdir()  # a write fails
    with pytest.raises(OSError):
        second.add([("loss", 24.0)], 4, when=5)
    torn.rmdir()
    torn.write_bytes(whole + b"\x18\x00\x00")  # half an event
    second.add([("loss", 24.0)], 4, when=5)
    assert drawn(tmp_path, "loss") == {1: 11, 2: 12, 3: 23, 4: 24}
    assert drawn(tmp_path, "norms/a") == {1: 0.5, 2: 0.5}


def test_tensorboard_compares_runs_by_what_they_were_told_and_how_they_tested(
    tmp_path: Path,
) -> None:
    values = {"optim.lr": 1e-3, "model.kind": "ViT", "seed": 7, "data.flip": True}
    for name, top1 in (("one", 40.0), ("two", 50.0)):
        Board(tmp_path / name, 0).describe(name, values, ["top1"])
        Board(tmp_path / name / "test", 1).add([("top1", top1)], 4, when=1.0)
    runs = EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    provider = MultiplexerDataProvider(runs.Reload(), str(tmp_path))
    context = Context(TBContext(data_provider=provider, logdir=str(tmp_path)))
    api: Any = api_pb2
    metric = api.ColParams(metric=api.MetricName(group="test", tag="top1"))
    asked = api.ListSessionGroupsRequest(
        allowed_statuses=range(4), start_index=0, slice_size=10, col_params=[metric]
    )
    found = Handler(RequestContext(), context, "", asked).run().session_groups
    assert {each.name: each.metric_values[0].value for each in found} == {"one": 40, "two": 50}
    told = found[0].hparams
    assert (told["optim.lr"].number_value, told["model.kind"].string_value) == (1e-3, "ViT")
    assert (told["seed"].number_value, told["data.flip"].bool_value) == (7, True)
