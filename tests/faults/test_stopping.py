"""How a run ends by itself: a loss that is not finite, and requests to stop in every phase."""

import json
import re
import signal
import subprocess
import sys

import psutil
import pytest
from small import ROOT, TINY, living, start, wait_for

from bigvit.checkpoint.load import read_weights
from bigvit.checkpoint.manifest import batch_of
from bigvit.checkpoint.run import checkpoints_of
from bigvit.cli import main

PHASES = ("start", "update", "evaluation", "save")
TARGETS = {
    "rank": "SIGUSR1, rank 1",
    "launch.py": "SIGTERM, rank 0",
    "group": "SIGTERM, rank 0",
    "orphan": "its launcher ended, rank ",
    "file": "bigvit stop, rank 0",
}
ORDINARY = (("update", "launch.py"), ("evaluation", "rank"), ("save", "orphan"))
LONG = ("--schedule.epochs", 500, "--micro-batch", 8)


def test_a_loss_that_is_not_finite_stops_every_rank(warm, tmp_path):
    run = tmp_path / "run"
    options = ("--run-dir", run, "--workers", 0, "--checkpoint-every", 1, "--sharding", "zero2")
    wild = ("--optim.lr", 1e30, "--schedule.warmup-epochs", 0)
    done = warm(2, "scripts/train.py", "digits_vit", *TINY, *options, *wild)
    assert done.codes == (3, 3), done.output
    assert "Traceback" not in done.output
    assert re.search(r"error: update 2: the (loss|gradient norm) is not finite", done.output)
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["update"], status["exit_code"]) == ("error", 1, 3)
    (last,) = checkpoints_of(run)
    assert last.name == "step_00000001"
    read_weights(last)  # verifies every file


@pytest.mark.parametrize(("phase", "target"), ORDINARY)
def test_a_request_to_stop(phase, target, warm, tmp_path):
    started = warm.start(2, *words(phase, target, tmp_path), mortal=False)
    ranks = [psutil.Process(pid) for pid in started.ranks]
    try:
        done = started.wait(180)
        _, alive = psutil.wait_procs(ranks, timeout=60)
    finally:
        started.kill()
    assert_stopped(phase, target, tmp_path, done.code, started.output, alive)


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("target", TARGETS)
def test_a_request_to_stop_in_any_phase_through_the_launcher(phase, target, tmp_path):
    run = tmp_path / "run"
    process = start(*words(phase, target, tmp_path))
    try:
        output, _ = process.communicate(timeout=180)
        _, alive = psutil.wait_procs(living(run), timeout=60)
    finally:
        for left in living(run):
            left.kill()
    assert_stopped(phase, target, tmp_path, process.returncode, output, alive)


def words(phase, target, folder):
    options = ("--run-dir", folder / "run", "--workers", 1, "--log-every", 1)
    script = ("tests/faults/phases.py", phase, target, folder / "said")
    return (*script, "digits_vit", *TINY, *options, "--checkpoint-every", 10, *LONG)


def assert_stopped(phase, target, folder, code, output, alive):
    run, said = folder / "run", folder / "said"
    assert alive == [], output
    assert "Traceback" not in output
    if target in ("rank", "file"):
        assert code == 85, output
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("requeue", 85), output
    if (phase, target) == ("start", "orphan") and not checkpoints_of(run):
        assert status["reason"] == "its launcher ended"  # seen before the first update
        return
    assert status["reason"].startswith(TARGETS[target])
    last = checkpoints_of(run)[-1]
    read_weights(last)
    assert batch_of(last) == status["update"] >= int(said.read_text())
    # a signal does not wait for the evaluation, which is made up for later; the others are looked
    # for once a second, and so short an evaluation may end before
    if phase == "evaluation" and target not in ("file", "orphan"):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert not [line for line in lines if "top1" in line]


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, marks=pytest.mark.slow),
    ],
)
def test_bigvit_launch_passes_a_signal_on_and_the_exit_code_back(number, tmp_path):
    run = tmp_path / "run"
    options = ("--run-dir", run, "--workers", 1, "--log-every", 1, "--schedule.epochs", 500)
    script = ("scripts/train.py", "digits_vit", *TINY, *options)
    process = start(*script, program=("bigvit", "launch"))
    try:
        wait_for(run / "metrics.jsonl")
        process.send_signal(number)
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        for left in living(run):
            left.kill()
    assert process.returncode == 85, output
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "requeue"
    assert status["reason"].startswith(signal.Signals(number).name)
    assert living(run) == []
    read_weights(checkpoints_of(run)[-1])


def test_a_run_outlives_what_reads_its_output(tmp_path):
    run = tmp_path / "run"
    options = ("--run-dir", str(run), "--workers", "0", "--log-every", "1", "--engine", "single")
    options += ("--schedule.epochs", "3")  # a second's work, all of it without a reader
    command = [sys.executable, "-u", "scripts/train.py", "digits_vit", *TINY, *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None and process.stdout.readline()
    process.stdout.close()  # as `| head -1` does
    assert process.wait(timeout=120) == 0
    assert json.loads((run / "status.json").read_text())["state"] == "done"


@pytest.mark.parametrize("how", ["bigvit stop", "--max-minutes"])
def test_bigvit_stop_and_a_time_limit_stop_a_run_after_a_checkpoint(how, warm, tmp_path):
    run = tmp_path / "run"
    options = ("--engine", "single", "--run-dir", run, "--workers", 0, "--log-every", 1)
    limit = ("--max-minutes", 0.1) if how == "--max-minutes" else ()
    started = warm.start(1, "scripts/train.py", "digits_vit", *TINY, *options, *LONG, *limit)
    wait_for(run / "metrics.jsonl")
    if not limit:
        assert main(["stop", str(run)]) == 0
    assert started.wait(60).code == 85
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "requeue" and status["reason"].startswith(how)
    read_weights(checkpoints_of(run)[-1])
    assert not (run / "stop").exists()
