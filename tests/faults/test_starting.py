"""Ranks that die, or leave, before all have met and while they connect: without a launcher, which
is where nobody else would end them. Each is named, within 20 s, and the run's status says it."""

import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import TINY, Apart, ByHand, Ended, free_port
from small import content

from bigvit.checkpoint.jobs import read_jobs
from bigvit.ranks.joining import NotMet, meet
from bigvit.recipe.parse import parse
from bigvit.task import Task
from bigvit.training.run_folder import status_of

SOON = 20


def options(tmp_path: Path) -> tuple[object, ...]:
    return ("digits_vit", *TINY, "--run-dir", tmp_path / "run", "--workers", 0)


def started(tmp_path: Path, **more: Any) -> ByHand:
    (tmp_path / "said").mkdir()
    return ByHand(2, *options(tmp_path), folder=tmp_path / "said", **more)


def ended(ranks: ByHand | Apart, tmp_path: Path, named: str) -> Ended:
    """The survivor says who died, and leaves a status and a line of jobs; nothing else is left."""
    end = ranks.end(SOON)
    survivor = 1 if named.startswith("rank 0") else 0
    said = end.output[survivor]
    assert re.search(rf"error: {named}; ", said) and said.count("error:") == 1, said
    assert "Traceback" not in said
    assert end.codes[survivor] == 1
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("error", 1)
    assert re.match(named, status["reason"])
    assert list(content(tmp_path / "run")) == ["jobs.jsonl", "status.json"]
    (job,) = read_jobs(tmp_path / "run")
    assert job.start == {} and job.end["reason"] == status["reason"]
    assert status_of(tmp_path / "run") == status
    return end


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_before_the_ranks_meet_is_named(victim, tmp_path):
    ranks = started(tmp_path)
    try:
        ranks.wait_until_listening()
        time.sleep(1.2)  # they have seen each other; torch takes seconds
        ranks.ranks[victim].kill()
        ended(ranks, tmp_path, rf"rank {victim} on \S+ died before the ranks met")
    finally:
        ranks.kill()


def test_a_rank_that_is_killed_while_the_ranks_connect_is_named(warm, tmp_path):
    held = Path(__file__).with_name("held.py")
    ranks = Apart(warm, 2, held, *options(tmp_path), environment={"HELD": "1"})
    try:
        ranks.wait_until(1, "held")
        ranks.ranks[1].kill()
        ended(ranks, tmp_path, r"rank 1 on \S+ died, or was killed")
    finally:
        ranks.kill()


def test_a_rank_that_nobody_saw_is_named_when_its_launcher_ends_the_others(tmp_path):
    ranks = ByHand(
        1,
        *("digits_vit", *TINY, "--run-dir", tmp_path / "run"),
        folder=tmp_path,
        environment={"LOCAL_SIZE": "2", "WORLD_SIZE": "2"},
    )
    try:
        ranks.wait_until_listening()
        ranks.ranks[0].send_signal(signal.SIGTERM)  # as launch.py does, and waits 30 s
        end = ranks.end(10)
    finally:
        ranks.kill()
    assert end.codes == [1] and "error: rank 1 on " in end.output[0]
    assert status_of(tmp_path / "run")["reason"].startswith("rank 1 on ")


def test_signals_to_a_rank_that_waits_for_rank_0_say_nothing(monkeypatch, capfd):
    """Torch's own wait tells with its C++ stack of each that interrupts it, and of its end."""
    there = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    for name, value in (there | {"MASTER_PORT": str(free_port())}).items():
        monkeypatch.setenv(name, value)
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(time.monotonic()))
    ask = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
    ask.start()
    began = time.monotonic()
    try:
        with pytest.raises(NotMet, match=r"rank 1 on \S+ could not reach rank 0 at .* in 2 s; "):
            meet(2)
    finally:
        ask.join()
        signal.signal(signal.SIGTERM, before)
    assert heard and heard[0] < began + 1.5  # while it waits, not after
    assert capfd.readouterr() == ("", "")


def test_ranks_whose_launcher_dies_before_they_meet_end_and_say_so(tmp_path):
    shell = ("bash", "-c", '"$@"; :', "deepspeed")
    alone = {"WORLD_SIZE": "2"}  # the other one never comes
    ranks = ByHand(
        1,
        *("digits_vit", *TINY, "--run-dir", tmp_path / "run"),
        folder=tmp_path,
        environment=alone,
        through=shell,
    )
    try:
        time.sleep(2)
        ranks.ranks[0].kill()
        deadline = time.monotonic() + 10
        while not (tmp_path / "run" / "status.json").exists():
            assert time.monotonic() < deadline, ranks.said()
            time.sleep(0.1)
    finally:
        ranks.kill()
    status = status_of(tmp_path / "run")
    assert (status["state"], status["exit_code"]) == ("requeue", 85)
    assert status["reason"] == "its launcher ended before the ranks met"


def test_what_one_rank_alone_is_given_wrongly_ends_all_with_its_reason(tmp_path):
    ranks = started(tmp_path, only={1: ("--stop-after", 10**6)})
    end = ranks.end(SOON)
    assert end.codes == [2, 2]
    assert re.fullmatch(r"error: rank 1 on \S+: --stop-after 1000000: .*\n", end.output[0])
    assert end.output[1] == "" and not (tmp_path / "run").exists()


def test_what_all_ranks_are_given_wrongly_is_said_by_one(tmp_path):
    end = started(tmp_path, only=dict.fromkeys((0, 1), ("--stop-after", 10**6))).end(SOON)
    assert end.codes == [2, 2] and "--stop-after" in end.output[0] and end.output[1] == ""
    assert end.output[0].count("error") == 1 and not (tmp_path / "run").exists()


@pytest.mark.slow  # tests/device shows more of it
def test_all_that_starts_works_with_the_accelerator_of_a_gpu(tmp_path):
    """As far as it goes: where there is no GPU, the first call of its driver ends it."""
    ranks = ByHand(
        1,
        *("digits_vit", *TINY, "--run-dir", tmp_path / "run", "--workers", 0),
        *("--stop-after", 1, "--sharding", "zero2"),
        folder=tmp_path,
        environment={"DS_ACCELERATOR": "cuda"},
    )
    (said,), (code,) = (end := ranks.end(120)).output, end.codes
    assert code == 85 or re.search(r"error: RuntimeError: Found no NVIDIA driver", said), said
    assert "in build_engine" in said or code == 85


def test_a_status_that_says_done_is_not_replaced_by_a_start_that_failed(tmp_path):
    (tmp_path / "run").mkdir()
    done = {"state": "done", "update": 7, "exit_code": 0, "reason": ""}
    (tmp_path / "run" / "status.json").write_text(json.dumps(done))
    ranks = ByHand(
        1,
        *("digits_vit", *TINY, "--run-dir", tmp_path / "run", "--timeout", 1),
        folder=tmp_path,
        environment={"WORLD_SIZE": "2", "MASTER_PORT": str(free_port())},
    )
    end = ranks.end(60)
    assert end.codes == [1] and "rank 1 of 2 did not come" in end.output[0]
    assert json.loads((tmp_path / "run" / "status.json").read_text()) == done
    assert os.listdir(tmp_path / "run") == ["status.json"]


@pytest.mark.slow  # tests/numerics/test_reading.py shows it on threads
def test_weights_that_one_rank_alone_cannot_read_end_all_with_its_reason(tmp_path):
    model = Task(parse(["digits_vit", *TINY]).recipe).model
    whole, cut = tmp_path / "whole.pth", tmp_path / "cut.pth"
    torch.save({"model": model.state_dict()}, whole)
    cut.write_bytes(whole.read_bytes()[:-3000])
    files = enumerate((whole, cut))
    ranks = started(tmp_path, only={r: ("--starts-from", "x", "--init", file) for r, file in files})
    end = ranks.end(60)
    assert end.codes == [2, 2], end.output
    said = (
        rf"error: --init {whole}: cannot be read \(rank 1 on \S+: not a file that torch.save wrote"
    )
    assert re.match(said, end.output[0]), end.output
    assert "".join(end.output).count("error:") == 1 and "Traceback" not in "".join(end.output)
    assert not (tmp_path / "run").exists()
