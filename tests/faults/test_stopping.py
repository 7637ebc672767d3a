"""How a run ends by itself: a loss that is not finite, and a signal."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from small import TINY

from bigvit.checkpoint.folder import checkpoints_of
from bigvit.checkpoint.load import read_weights
from bigvit.cli import main

ROOT = Path(__file__).parent.parent.parent


def test_a_loss_that_is_not_finite_stops_every_rank(launch, tmp_path):
    run = tmp_path / "run"
    options = ("--run-dir", run, "--workers", 0, "--checkpoint-every", 1, "--sharding", "zero2")
    wild = ("--optim.lr", 1e30, "--schedule.warmup-epochs", 0)
    done = launch(2, "scripts/train.py", "digits_vit", *TINY, *options, *wild)
    assert done.code == 3, done.output
    assert "Traceback" not in done.output
    assert re.search(r"error: update 2: the (loss|gradient norm) is not finite", done.output)
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["update"], status["exit_code"]) == ("error", 1, 3)
    (last,) = checkpoints_of(run)
    assert last.name == "step_00000001"
    read_weights(last)  # verifies every file


def test_a_signal_to_one_rank_stops_all_after_a_checkpoint(tmp_path):
    run = tmp_path / "run"
    launcher = Path(sys.executable).parent / "deepspeed"
    options = ("--run-dir", str(run), "--workers", "1", "--log-every", "1")
    process = subprocess.Popen(
        [launcher, "--num_accelerators", "2", "--master_port", "29741", "scripts/train.py"]
        + ["digits_vit", *TINY, *options],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 90
        while not (run / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        rank_1 = _rank(1, run)
        os.kill(rank_1, signal.SIGUSR1)
        output, _ = process.communicate(timeout=90)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 85, output
    status = json.loads((run / "status.json").read_text())
    (last,) = checkpoints_of(run)
    assert status["state"] == "requeue" and last.name == f"step_{status['update']:08d}"
    read_weights(last)


def test_bigvit_stop_stops_a_run_after_a_checkpoint(tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "scripts/train.py", "digits_vit", *TINY, "--engine", "single"]
    options = ["--run-dir", str(run), "--workers", "0", "--log-every", "1"]
    process = subprocess.Popen([*command, *options, "--schedule.epochs", "500"], cwd=ROOT)
    try:
        deadline = time.monotonic() + 60
        while not (run / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert main(["stop", str(run)]) == 0
        assert process.wait(timeout=60) == 85
    finally:
        process.kill()
        process.wait()
    assert json.loads((run / "status.json").read_text())["state"] == "requeue"
    (last,) = checkpoints_of(run)
    read_weights(last)


def _rank(rank: int, run: Path) -> int:
    """The process of a rank of the run: the first of those whose parent is the launcher."""
    wanted = f"--local_rank={rank}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in words and str(run).encode() in words:
            found.append(int(entry.name))
    return min(found)
