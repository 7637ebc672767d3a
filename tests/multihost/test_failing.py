"""A rank or host that dies, and one that falls silent, end the run on every host, and are named."""

import json
import signal
import time
from pathlib import Path

import hosts as two
import pytest
from small import TINY, wait_for

pytestmark = pytest.mark.multihost

LONG = ("digits_vit", *TINY, "--schedule.epochs", 5000, "--workers", 1, "--log-every", 1)


def started(hosts: two.Hosts, folder: Path, *options: object):
    """A long run over both hosts, in the middle of it, and what it says."""
    run, output = folder / "run", folder / "output"
    script = two.ROOT / "scripts" / "train.py"
    command = [*hosts.launcher(), script, *LONG, "--run-dir", run, *options]
    process = hosts.popen("n1", command, output)
    wait_for(run / "metrics.jsonl", 60)
    assert len(hosts.ranks("n1")) == len(hosts.ranks("n2")) == 1, output.read_text()
    return process, run, output


def seconds_to_end(hosts: two.Hosts, name: str, began: float, limit: float) -> float:
    """How long a host's ranks took to end, or the limit."""
    while hosts.ranks(name) and time.monotonic() < began + limit:
        time.sleep(0.1)
    return time.monotonic() - began


def test_a_host_whose_ranks_are_killed_ends_the_run_everywhere(hosts, tmp_path):
    process, run, output = started(hosts, tmp_path)
    (victim,) = hosts.ranks("n2")
    began = time.monotonic()
    victim.kill()
    took = seconds_to_end(hosts, "n1", began, 60)
    code = two.wait(process, 60)
    print(f"n1's ranks ended after {took:.1f} s, the launcher after {time.monotonic() - began:.1f}")
    said = output.read_text()
    assert took < 30 and code not in (0, None), said
    assert "error: rank 1 on n2 died" in said
    assert "Traceback" not in said
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("error", 1)
    assert status["reason"].startswith("rank 1 on n2 died")


def test_the_first_error_is_the_one_that_is_shown(hosts, tmp_path):
    """A rank that crashes is named with its error on the other host, too."""
    process, run, output = started(hosts, tmp_path, "--keep", 1)
    (victim,) = hosts.ranks("n1")
    began = time.monotonic()
    victim.send_signal(signal.SIGKILL)
    assert seconds_to_end(hosts, "n2", began, 60) < 30
    assert two.wait(process, 60) not in (0, None)
    assert "error: rank 0 on n1 died" in output.read_text()


def test_a_cut_link_ends_both_sides_and_names_the_ranks(hosts, tmp_path):
    process, run, output = started(hosts, tmp_path, "--timeout", 20)
    began = time.monotonic()
    hosts.cut()
    try:
        took = [seconds_to_end(hosts, name, began, 90) for name in two.NAMES]
    finally:
        hosts.mend()
    print(f"after {took} s")
    assert max(took) < 60
    assert two.wait(process, 60) not in (0, None)
    said = output.read_text()
    assert "error: rank 1 on n2 did not answer for 20 s" in said
    assert "error: rank 0 on n1 did not answer for 20 s" in said
    assert json.loads((run / "status.json").read_text())["state"] == "error"


def test_a_rank_that_stands_still_is_named(hosts, tmp_path):
    process, run, output = started(hosts, tmp_path, "--timeout", 10)
    (victim,) = hosts.ranks("n2")
    began = time.monotonic()
    victim.send_signal(signal.SIGSTOP)
    try:
        assert seconds_to_end(hosts, "n1", began, 60) < 30
    finally:
        victim.kill()
    assert two.wait(process, 60) not in (0, None)
    assert "error: rank 1 on n2 did not answer for 10 s" in output.read_text()
