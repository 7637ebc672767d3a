"""A disk that is full for a moment, or for good, at any write of a run: what only watches ends
nothing, a checkpoint that cannot be written ends it with its reason, and resumed it ends with the
same bits."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from small import ROOT, TINY, differing

from bigvit.checkpoint.load import read_weights
from bigvit.checkpoint.run import checkpoints_of

HERE = Path(__file__).parent
UPDATES = 23
EPOCH = ("--schedule.epochs", "1", "--schedule.warmup-epochs", "0")
OPTIONS = (*EPOCH, "--engine", "single", "--workers", "0", "--keep", "1")
OFTEN = ("--checkpoint-every", "10", "--log-every", "10")
GOOD = 10**9  # writes: the disk stays full
NEEDED = re.compile(r"(/(\.recipe\.json\.aside|lock|checkpoints))?$|/\.seen_by_all_")
SAVING = re.compile(r"/checkpoints/(\.step_\d+\.[0-9a-f]{8}\.aside|$)|/checkpoints$")
PRUNING = re.compile(r"/checkpoints/step_\d+$")  # renamed before it is removed


@dataclass(frozen=True)
class Ended:
    """A run that ended."""

    run: Path
    code: int
    said: str
    writes: list[tuple[bool, str, str]]  # did it fail, what was done, to what in the run folder

    @property
    def failed(self) -> list[tuple[str, str]]:
        """What failed; of a folder that is flushed, what was renamed in it before."""
        found = list[tuple[str, str]]()
        for i, (failed, what, path) in enumerate(self.writes):
            if failed and what == "fsync":  # other threads write between a renaming and this
                renamed = [old for _, then, old in self.writes[:i] if then == "rename"]
                path = next((old for old in renamed[::-1] if old.rpartition("/")[0] == path), path)
            if failed:
                found.append((what, path))
        return found


Start = Callable[[Path, int, int], Ended]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Train in a run folder on a disk that is full at a write, for as many as are given."""
    folder = tmp_path_factory.mktemp("shim")
    build = ["cc", "-shared", "-fPIC", "-O1", "-o", folder / "full_disk.so", HERE / "full_disk.c"]
    try:
        subprocess.run([*build, "-ldl"], check=True)
    except FileNotFoundError:
        pytest.skip("there is no C compiler")
    pipe, numbers = subprocess.PIPE, count()
    server = subprocess.Popen(
        [sys.executable, HERE / "full_disk.py"],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(folder / "full_disk.so"), "OMP_NUM_THREADS": "1"},
        stdin=pipe,
        stdout=pipe,
        text=True,
    )
    assert server.stdin is not None and server.stdout is not None

    def start(run: Path, at: int = 0, times: int = 0) -> Ended:
        assert server.stdin is not None and server.stdout is not None
        number = next(numbers)
        said, log = folder / f"said_{number}", folder / f"log_{number}"
        words = ["digits_vit", *TINY, *OPTIONS, *OFTEN, "--run-dir", str(run), "--resume", "auto"]
        job = {"arguments": words, "below": str(run), "at": at, "times": times}
        print(
            json.dumps({**job, "log": str(log), "said": str(said)}), file=server.stdin, flush=True
        )
        code = int(server.stdout.readline())
        lines = [line.split(" ", 3) for line in log.read_text().splitlines()]
        writes = [(line[1] == "1", line[2], line[3]) for line in lines]
        return Ended(run, code, said.read_text(), writes)

    try:
        yield start
    finally:
        server.kill()
        server.communicate()


@pytest.fixture(scope="module")
def undisturbed(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The run on a disk with room."""
    ended = start(tmp_path_factory.mktemp("undisturbed") / "run", 0, 0)
    assert ended.code == 0 and not ended.failed and len(ended.writes) > 60, ended.said
    return ended


def check(ended: Ended, start: Start, undisturbed: Ended) -> None:
    """A run that met a full disk ended as it has to, and goes on as if it had not."""
    what = f"{ended.failed[:3]}: {ended.code}\n{ended.said}"
    paths = [path for _, path in ended.failed]
    assert paths and "Traceback" not in ended.said, what
    assert ended.said.count("Errno 28") >= 1 and len(ended.said.splitlines()) < 40, what
    if any(NEEDED.match(path) for path in paths[:1]):
        assert ended.code == 2 and f"--run-dir {ended.run}" in ended.said, what
    elif any(SAVING.search(path) for path in paths):
        assert ended.code == 1, what
        assert re.search(r"error: \S+ could not be written \(\[Errno 28\] No space", ended.said), (
            what
        )
    else:
        assert ended.code == 0 and "error" not in ended.said, what
        assert f"done: update {UPDATES}" in ended.said, what
        for path in paths:
            name = {"tensorboard": "TensorBoard's log"}.get(path.split("/")[1], path.split("/")[-1])
            name = name.removeprefix(".").removesuffix(".aside")
            name = "metrics.jsonl" if name == "metrics" else name
            assert PRUNING.search(path) or f"{name} cannot be written" in ended.said, what
    for checkpoint in checkpoints_of(ended.run):
        read_weights(checkpoint)  # verifies every file
    again = start(ended.run, 0, 0)
    assert again.code == 0 and "warning" not in again.said, again.said
    last, theirs = checkpoints_of(ended.run)[-1], checkpoints_of(undisturbed.run)[-1]
    assert last.name == theirs.name and differing(last, theirs) == []
    status = json.loads((ended.run / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("done", 0)
    lines = (ended.run / "metrics.jsonl").read_text().splitlines()
    assert [_place(line) for line in lines] == [
        _place(line) for line in (undisturbed.run / "metrics.jsonl").read_text().splitlines()
    ]


def _place(line: str) -> tuple[int, float | None, float | None]:
    values = json.loads(line)
    return values["batch"], values.get("loss"), values.get("test_loss")


def kind(what: str, path: str) -> str:
    """Writes that are alike."""
    path = re.sub(r"\.[0-9a-f]{8}\.aside", ".aside", path)
    return f"{what} {re.sub(r'events.*', 'events', re.sub(r'[0-9]+', 'N', path))}"


CHOSEN = (
    "write /tensorboard/train/events",
    "write /metrics.jsonl",
    "rename /.status.json.aside",
    "write /checkpoints/.step_N.aside/rank_N.safetensors",
    "rename /checkpoints/step_N",
)


@pytest.mark.parametrize("chosen", CHOSEN)
def test_a_disk_that_is_full_for_a_moment(
    chosen: str, start: Start, undisturbed: Ended, tmp_path: Path
) -> None:
    kinds = [kind(what, path) for _, what, path in undisturbed.writes]
    check(start(tmp_path / "run", kinds.index(chosen) + 1, 1), start, undisturbed)


def test_a_disk_that_stays_full_after_the_last_checkpoint(
    start: Start, undisturbed: Ended, tmp_path: Path
) -> None:
    last = max(i for i, (_, _, path) in enumerate(undisturbed.writes) if "/checkpoints" in path)
    check(start(tmp_path / "run", last + 2, GOOD), start, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, GOOD])
def test_a_disk_that_is_full_at_any_write(
    times: int, start: Start, undisturbed: Ended, tmp_path: Path
) -> None:
    for at in range(1, len(undisturbed.writes) + 1):
        run = tmp_path / f"run_{at}"
        if (ended := start(run, at, times)).failed:  # the last few may come in another order
            check(ended, start, undisturbed)
