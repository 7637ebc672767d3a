"""`bigvit neighbours`, `probe` and `retrieve` over ranks."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bigvit.cli import main
from bigvit.train import main as train

ASK = {
    "neighbours": (),
    "probe": ("--epochs", "2"),
    "retrieve": ("--map",),
}
DIES = """
import os, signal, sys
from bigvit.cli import main
from bigvit.neighbours import embeddings

whole = embeddings.shared_batches

def two(*given):
    batches = whole(*given)
    yield next(batches)
    yield next(batches)
    os.kill(os.getpid(), signal.SIGKILL)

embeddings.shared_batches = two
main(sys.argv[1:])
"""
"""A rank that is killed in its third batch."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("parity") / "run"
    short = ["--schedule.epochs", "1", "--schedule.warmup-epochs", "0"]
    how = ["--engine", "single", "--workers", "0", "--run-dir", str(run)]
    assert train(["coarse_digits_grafit", *short, *how]) == 0
    return run


def words(command: str, run: Path, keep: Path) -> list[str]:
    return [command, str(run), "--keep", str(keep), "--batch-size", "100", *ASK[command]]


def over(programs: Sequence[Sequence[str]], words: Sequence[str]) -> list[tuple[int, str, str]]:
    """The code and outputs of each rank, whose program is given."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = str(door.getsockname()[1])
    world = str(len(programs))
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": world}
    ranks = [
        subprocess.Popen(
            [sys.executable, *program, *words],
            env=os.environ | address | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, program in enumerate(programs)
    ]
    said = [rank.communicate(timeout=120) for rank in ranks]
    return [(rank.returncode, *each) for rank, each in zip(ranks, said, strict=True)]


WHOLE = ("-m", "bigvit.cli")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("neighbours", 3),
        pytest.param("probe", 2, marks=pytest.mark.slow),
        pytest.param("retrieve", 2, marks=pytest.mark.slow),
    ],
)
def test_any_number_of_ranks_keeps_and_says_the_same(
    run: Path, tmp_path: Path, capsys: Any, command: str, ranks: int
) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    capsys.readouterr()
    assert main(words(command, run, alone)) == 0
    wanted = capsys.readouterr().out
    found = over([WHOLE] * ranks, words(command, run, together))
    assert [code for code, *_ in found] == [0] * ranks, found
    assert [out for _, out, _ in found] == [wanted] + [""] * (ranks - 1)
    assert contents(together) == contents(alone) and len(contents(alone)) == 2


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_others_and_leaves_no_file(
    run: Path, tmp_path: Path
) -> None:
    keep = tmp_path / "kept"
    first, second = over([WHOLE, ("-c", DIES)], words("neighbours", run, keep))
    assert second[0] == -9 and first[0] == 1, (first, second)
    assert "rank 1 on" in first[2] and "died" in first[2]
    assert not keep.exists() or not contents(keep)


def test_bad_input_is_said_once(run: Path, tmp_path: Path) -> None:
    asked = [*words("neighbours", run, tmp_path), "--neighbours", "5000"]
    (code, _, error), (other, _, silence) = over([WHOLE] * 2, asked)
    assert (code, other, silence) == (2, 2, "")
    assert "there are 1,497 training images" in error
