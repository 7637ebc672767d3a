"""Ranks among each other: who leaves, who stands still, and what a late rank 0 must not undo."""

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from by_hand import Apart

SCRIPT = Path(__file__).with_name("plain_ranks.py")


@pytest.fixture
def started(warm, tmp_path) -> Callable[[int, str], Apart]:
    """Start some ranks."""
    return lambda world, scenario: Apart(warm, world, SCRIPT, scenario, tmp_path / "checkpoints")


def test_a_rank_that_leaves_while_others_are_at_work_ends_the_run_with_its_reason(started):
    end = started(3, "leave").end(30)
    assert end.codes == [2, 2, 2]
    reason = "rank 1 on here: its file cannot be read"
    assert end.output[0] == f"watching\nerror: {reason}\ntold 2: {reason}\n"
    assert [said.count("error") for said in end.output] == [1, 0, 0]


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_that_stood_still_is_blamed_and_blames_nobody(victim, started):
    ranks = started(3, "stand")
    try:
        for rank in range(3):
            ranks.wait_until(rank, "watching")
        ranks.ranks[victim].send_signal(signal.SIGSTOP)
        time.sleep(2)  # not long enough to be given up
        ranks.ranks[victim].send_signal(signal.SIGCONT)
        time.sleep(1)
        assert all(process.is_running() for process in ranks.ranks), ranks.said()
        ranks.ranks[victim].send_signal(signal.SIGSTOP)
        time.sleep(9)
        ranks.ranks[victim].send_signal(signal.SIGCONT)
        end = ranks.end(15)
    finally:
        ranks.kill()
    said = "".join(end.output)
    assert end.codes == [1, 1, 1]
    named = set(re.findall(r"rank \d on here[^:]* did not answer for 4 s", said))
    assert named == {f"rank {victim} on here did not answer for 4 s"}, said
    assert "died" not in said, said
    # rank 0, which has the run folder, says so there as well
    assert f"told 1: rank {victim} on here did not answer" in end.output[0]


def test_ranks_that_die_within_a_second_are_named_together(started):
    ranks = started(4, "stand")
    try:
        for rank in range(4):
            ranks.wait_until(rank, "watching")
        time.sleep(2)  # all have heard of each other
        for victim in (1, 2):
            ranks.ranks[victim].kill()
            time.sleep(0.4)
        end = ranks.end(15)
    finally:
        ranks.kill()
    assert end.codes == [1, -9, -9, 1]
    assert "error: rank 1 on here, rank 2 on here died, or was killed" in end.output[0]


@pytest.mark.parametrize("scenario", ["race", pytest.param("failed", marks=pytest.mark.slow)])
def test_what_a_faster_rank_writes_is_not_cleared_away(scenario, started, tmp_path):
    end = started(2, scenario).end(60)
    assert end.codes == [0, 0], end.output
    assert all(said.endswith("saved\n") for said in end.output), end.output
    (made,) = (tmp_path / "checkpoints").glob("step_*")
    assert sorted(file.name for file in made.iterdir()) == [
        "manifest.json",
        "rank_00000.safetensors",
        "rank_00001.safetensors",
    ]
