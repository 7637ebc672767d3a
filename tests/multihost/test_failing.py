"""A rank or host that dies, and one that falls silent, end the run on every host, and are named."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import hosts as two
import pytest
from small import TINY, wait_for

from bigvit.checkpoint.manifest import batch_of
from bigvit.checkpoint.run import checkpoints_of

pytestmark = pytest.mark.multihost

LONG = ("digits_vit", *TINY, "--schedule.epochs", 5000, "--workers", 1, "--log-every", 1)


@pytest.fixture
def start(hosts, warm, tmp_path) -> Callable[..., tuple[two.Warmed, Path]]:
    """Start a long run over both hosts, and wait until it is in the middle."""

    def run(*options: object, trouble: str = "") -> tuple[two.Warmed, Path]:
        folder = tmp_path / "run"
        script = Path(__file__).with_name("trouble.py")
        words = (*LONG, "--run-dir", folder, *options)
        ranks = hosts.warm(warm, script, *words, TROUBLE=trouble)
        wait_for(folder / "metrics.jsonl", 60)
        assert (folder / "metrics.jsonl").exists(), ranks.output
        return ranks, folder

    return run


def started(hosts: two.Hosts, folder: Path, *options: object, trouble: str = ""):
    """A long run over both hosts, in the middle of it, and what it says."""
    run, output = folder / "run", folder / "output"
    script = Path(__file__).with_name("trouble.py")
    command = [*hosts.launcher(TROUBLE=trouble), script, *LONG, "--run-dir", run, *options]
    process = hosts.popen("n1", command, output)
    wait_for(run / "metrics.jsonl", 60)
    assert (run / "metrics.jsonl").exists(), output.read_text()
    return process, run, output


def seconds_to_end(hosts: two.Hosts, name: str, began: float, limit: float) -> float:
    """How long a host's ranks took to end, or the limit."""
    while hosts.ranks(name) and time.monotonic() < began + limit:
        time.sleep(0.1)
    return time.monotonic() - began


def test_a_host_whose_ranks_are_killed_ends_the_run_everywhere(hosts, start):
    ranks, run = start()
    began = time.monotonic()
    ranks.rank("n2").kill()
    took = ranks.seconds_to_end("n1", began, 60)
    print(f"n1's rank ended after {took:.1f} s")
    assert took < 30 and ranks.wait(60) == [1, -signal.SIGKILL]
    said = ranks.output
    assert "error: rank 1 on n2 died" in said
    assert "Traceback" not in said
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("error", 1)
    assert status["reason"].startswith("rank 1 on n2 died")


@pytest.mark.slow
def test_the_host_of_rank_0_may_die_too(hosts, start):
    ranks, _ = start()
    began = time.monotonic()
    ranks.rank("n1").kill()
    assert ranks.seconds_to_end("n2", began, 60) < 30
    assert ranks.wait(60) == [-signal.SIGKILL, 1]
    assert "error: rank 0 on n1 died" in ranks.output


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_the_first_error_is_shown_on_every_host(hosts, rank, start):
    ranks, run = start(trouble=f"crash {rank}")
    assert ranks.wait(60) == [1, 1]
    said = ranks.output
    here, there = two.NAMES[rank], two.NAMES[1 - rank]
    assert f"{there}: error: rank {rank} on {here} crashed: KeyError: 'in trouble'" in said
    assert f"{here}: KeyError: 'in trouble'" in said and said.count("Traceback") == 1
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("error", 1)
    assert "KeyError" in status["reason"]


def test_a_rank_that_the_others_wait_for_is_named_with_what_it_does(hosts, start):
    ranks, _ = start("--timeout", 6, trouble="sleep 1")
    assert ranks.wait(60) == [1, 1]
    assert re.search(
        r"error: rank 1 on n2 did not go on from update \d+ for \d+ s \(--timeout 6\), and the "
        "others wait",
        ranks.output,
    )


@pytest.mark.slow
def test_ranks_whose_launcher_on_another_host_is_gone_save_and_leave(hosts, tmp_path):
    process, run, output = started(hosts, tmp_path)
    os.killpg(process.pid, signal.SIGKILL)  # deepspeed, pdsh and its ssh, which sshd outlives
    began = time.monotonic()
    assert max(seconds_to_end(hosts, name, began, 60) for name in two.NAMES) < 30
    two.wait(process, 0)
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("requeue", 85), output.read_text()
    assert status["reason"].startswith("its launcher ended")
    assert batch_of(checkpoints_of(run)[-1]) == status["update"]


def test_ranks_that_cannot_connect_end_at_once_and_say_so(hosts, warm, tmp_path):
    run = tmp_path / "run"
    script = (two.ROOT / "scripts" / "train.py", *LONG, "--run-dir", run)
    # each listens where the other cannot come
    ranks = hosts.warm(warm, *script, GLOO_SOCKET_IFNAME="lo")
    assert ranks.wait(90) == [1, 1], ranks.output
    said = ranks.output
    for host in two.NAMES:
        reason = r"rank \d on n\d met the others, and could not connect with them"
        assert re.search(f"{host}: error: {reason}", said), said
    assert "Traceback" not in said
    assert "could not connect" in json.loads((run / "status.json").read_text())["reason"]


@pytest.mark.slow
def test_ranks_that_do_not_come_are_named(hosts, tmp_path):
    meeting = ("--master_addr", two.ADDRESSES["n1"], "--master_port", two.free_port())
    alone = ["deepspeed", "--hostfile", "hosts", "--no_ssh", "--node_rank"]
    script = (two.ROOT / "scripts" / "train.py", *LONG, "--timeout", 5)
    for rank, said in (
        (0, "error: rank 1 of 2 did not come to 10.77.0.1 in 5 s"),
        (1, "error: rank 1 on n2 could not reach rank 0 at 10.77.0.1, port"),
    ):
        output = tmp_path / str(rank)
        command = [*alone, rank, *meeting, *script, "--run-dir", tmp_path / "run"]
        code = two.wait(hosts.popen(two.NAMES[rank], command, output), 60)
        assert code not in (0, None)
        assert said in output.read_text() and "Traceback" not in output.read_text()
        status = json.loads((tmp_path / "run" / "status.json").read_text())
        assert said == f"error: {status['reason']}"[: len(said)]


@pytest.mark.parametrize(
    "engine",
    ["deepspeed", *(pytest.param(e, marks=pytest.mark.slow) for e in ("fsdp2", "fairscale"))],
)
def test_a_cut_link_ends_both_sides_and_names_the_ranks(hosts, start, engine):
    ranks, run = start("--timeout", 6, "--engine", engine)
    began = time.monotonic()
    hosts.cut()
    try:
        took = [ranks.seconds_to_end(name, began, 90) for name in two.NAMES]
    finally:
        hosts.mend()
    print(f"after {took} s")
    assert max(took) < 46
    assert ranks.wait(60) == [1, 1]
    said = ranks.output
    assert "error: rank 1 on n2 did not answer for 6 s" in said
    assert "error: rank 0 on n1 did not answer for 6 s" in said
    assert json.loads((run / "status.json").read_text())["state"] == "error"


@pytest.mark.slow
def test_a_rank_that_stands_still_is_named(hosts, start):
    ranks, _ = start("--timeout", 6)
    victim, began = ranks.rank("n2"), time.monotonic()
    victim.send_signal(signal.SIGSTOP)
    try:
        assert ranks.seconds_to_end("n1", began, 60) < 26
    finally:
        victim.kill()
    assert ranks.wait(60) == [1, -signal.SIGKILL]
    assert "error: rank 1 on n2 did not answer for 6 s" in ranks.output
