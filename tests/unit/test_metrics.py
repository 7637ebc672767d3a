"""metrics.jsonl: what a line holds, and its one reader."""

import itertools
import json
import threading
import tracemalloc
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from bigvit.checkpoint.files import append
from bigvit.checkpoint.metrics import EVALUATION, UPDATE, new_line, read_metrics


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_a_line_has_a_kind_a_time_and_a_place(path: Path) -> None:
    written = new_line(UPDATE, 12, 11, 0.5, {"loss": 2.5, "grad_norm": None})
    assert list(written) == ["kind", "time", "batch", "update", "epoch", "loss", "grad_norm"]
    path.write_text(f"{json.dumps(written)}\n")
    (line,) = read_metrics(path)
    assert (line.kind, line.batch, line.update, line.epoch) == ("update", 12, 11, 0.5)
    assert line.values == written and json.loads(line.text) == written
    assert line.time is not None
    time = datetime.fromisoformat(line.time)
    assert time.utcoffset() == timedelta(0) and time.microsecond == 0
    assert abs(datetime.now(timezone.utc) - time) < timedelta(minutes=1)


def test_lines_of_an_older_bigvit_are_read_as_what_they_meant(path: Path) -> None:
    path.write_text(
        '{"update": 4, "epoch": 0.5, "loss": 2.0, "lr": 0.1, "grad_norm": 1.0}\n'
        '{"batch": 9, "update": 8, "epoch": 1.0, "loss": 1.0, "grad_norm": null}\n'
        '{"batch": 9, "update": 8, "epoch": 1.0, "images": 10, "top1": 50.0, "test_loss": 1.5}\n'
    )
    lines = list(read_metrics(path))
    assert [line.kind for line in lines] == [UPDATE, UPDATE, EVALUATION]
    assert [(line.batch, line.update) for line in lines] == [(4, 4), (9, 8), (9, 8)]
    assert [line.epoch for line in lines] == [0.5, 1.0, 1.0]
    assert {line.time for line in lines} == {None}


def test_a_kind_that_is_not_known_yet_is_given_as_it_is(path: Path) -> None:
    text = '{"kind": "throughput", "batch": 3, "update": 3, "top1": 1}'
    path.write_text(f"{text}\n")
    assert [(line.kind, line.text) for line in read_metrics(path)] == [("throughput", text)]


WHOLE = '{"batch": 1, "update": 1, "loss": 2.0}'


@pytest.mark.parametrize(
    "broken",
    [
        *(b'{"update": 1', b"12", b"null", b"[]", b'"update"', b"", b"\xff\xfe\x00"),
        *(b'{"loss": 1}', b'{"update": null}', b'{"update": 1.5}', b'{"update": 1, "kind": 2}'),
        b"[" * 100_000,
    ],
)
def test_what_is_no_whole_line_is_left_out(path: Path, broken: bytes) -> None:
    path.write_bytes(broken + b"\n" + WHOLE.encode() + b"\n" + broken)
    assert [line.text for line in read_metrics(path)] == [WHOLE]


def test_a_file_that_is_written_meanwhile_gives_its_whole_lines(path: Path) -> None:
    lines = [json.dumps(new_line(UPDATE, n, n, n / 7, {"loss": 1 / n})) for n in range(1, 300)]
    path.touch()

    def write() -> None:
        for line in lines:
            middle = len(line) // 2
            append(path, line[:middle].encode())
            append(path, f"{line[middle:]}\n".encode())

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while writer.is_alive():
            found = [line.text for line in read_metrics(path)]
            assert found == lines[: len(found)]
    finally:
        writer.join()
    assert [line.text for line in read_metrics(path)] == lines


def test_a_large_file_is_read_in_one_pass_and_never_held(path: Path) -> None:
    measured = {"loss": 1.0, "norms": {f"block {n}": {"weight": 1.0} for n in range(20)}}
    with path.open("w") as file:
        for n in range(20_000):
            file.write(json.dumps(new_line(UPDATE, n, n, 0.0, measured)) + "\n")
    size = path.stat().st_size
    assert size > 10_000_000
    assert next(read_metrics(path)).batch == 0, "the first line waits for no other"
    tracemalloc.start()
    try:
        last = 0
        for line in itertools.islice(read_metrics(path), 5000):
            last = line.batch
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert last == 4999 and peak < size / 20
