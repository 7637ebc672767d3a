"""scripts/slurm.sbatch under a real Slurm of two nodes."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, missing, two_nodes
from small import TINY, differing, wait_for

from bigvit.checkpoint.run import checkpoints_of

pytestmark = [pytest.mark.multihost, pytest.mark.slow]
OPTIONS = ("--workers", 0, "--micro-batch", 8, "--log-every", 10, "--sharding", "zero1")
# more than the half minute that Slurm may take to signal, on a fast machine too: a save an update
LONG = ("--schedule.epochs", 60, "--evaluate-every", 20, "--checkpoint-every", 1)
SCRIPT = "scripts/slurm.sbatch"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    if reason := missing():
        pytest.skip(reason)
    with two_nodes(tmp_path_factory.mktemp("slurm")) as made:
        yield made


def submit(cluster: Cluster, run: Path, *more: object, minutes: int = 10, warn: int = 30) -> str:
    limits = (f"--time={minutes}", f"--signal=B:USR1@{warn}", f"--output={run}.log")
    return cluster.submit(*limits, SCRIPT, "digits_vit", "--run-dir", run, *TINY, *OPTIONS, *more)


def end_of(cluster: Cluster, number: str, run: Path, seconds: float = 420) -> dict[str, str]:
    """What Slurm says of a job that has ended."""
    deadline = time.monotonic() + seconds
    while (job := cluster.job(number))["JobState"] in ("PENDING", "RUNNING", "COMPLETING"):
        assert time.monotonic() < deadline, said(run)
        time.sleep(0.5)
    return job


def state_of(job: dict[str, str]) -> tuple[str, str, str]:
    return job["JobState"], job["ExitCode"], job["Restarts"]


def said(run: Path) -> str:
    logs = sorted(run.parent.glob(f"{run.name}.*log"))
    return "\n".join(f"== {log.name}\n{log.read_text()}" for log in logs)


def test_a_job_saves_before_its_limit_is_queued_again_and_ends_as_one_in_a_piece(cluster, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    began = time.monotonic()
    job = end_of(cluster, submit(cluster, whole, *LONG), whole)
    assert state_of(job) == ("COMPLETED", "0:0", "0"), said(whole)
    print(f"in a piece: {time.monotonic() - began:.0f} s")

    began = time.monotonic()
    number = submit(cluster, cut, *LONG)
    wait_for(cut / "metrics.jsonl")
    # its limit comes near: Slurm signals within half a minute
    cluster.ask("scontrol", "update", f"JobId={number}", "TimeLimit=1")
    while cluster.job(number)["Restarts"] == "0":
        assert time.monotonic() < began + 240, said(cut)
        time.sleep(0.2)
    cluster.ask("scontrol", "update", f"JobId={number}", "TimeLimit=10")
    status = json.loads((cut / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("requeue", 85), said(cut)
    assert status["update"] == int(checkpoints_of(cut)[-1].name.removeprefix("step_")) > 0
    print(f"asked to stop, saved at update {status['update']}: {time.monotonic() - began:.0f} s")
    job = end_of(cluster, number, cut)
    assert state_of(job) == ("COMPLETED", "0:0", "1"), said(cut)
    print(f"queued again and done: {time.monotonic() - began:.0f} s")

    assert f"slurm: requeue at update {status['update']}, from 0" in said(cut)
    logs = sorted(log.name for log in tmp_path.glob("cut*.log"))
    assert logs == ["cut.log", "cut.node0.log", "cut.node1.log"]
    last = [checkpoints_of(run)[-1] for run in (whole, cut)]
    assert last[0].name == last[1].name
    assert differing(*last) == []


def test_a_job_that_stopped_itself_or_never_began_is_not_queued_again(cluster, tmp_path):
    wild = ("--optim.lr", 1e30, "--schedule.warmup-epochs", 0)
    for name, options, code in (("wild", wild, 3), ("refused", ("--no-such-option", 1), 2)):
        run = tmp_path / name
        job = end_of(cluster, submit(cluster, run, *options), run)
        assert state_of(job) == ("FAILED", f"{code}:0", "0"), said(run)


def test_nothing_is_left_on_the_nodes(cluster):
    left = [process.cmdline() for process in cluster.processes()]
    assert [words for words in left if "scripts/train.py" in words] == []
