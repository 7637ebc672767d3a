"""torchrun and accelerate start what `deepspeed` starts. They return 1 for every code but 0."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from small import ROOT, TINY, wait_for

from bigvit.checkpoint import metrics
from bigvit.cli import main

SMALL = (*TINY, "--workers", "0", "--log-every", "1")
TORCHRUN = ("torchrun", "--standalone", "--nproc_per_node", "2")
ACCELERATE = ("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1")
ACCELERATE = (*ACCELERATE, "--main_process_port", "0", "--mixed_precision", "no")
WAYS = [
    (ACCELERATE, "fsdp2"),  # by the code that torchrun runs
    *(
        pytest.param(launcher, engine, marks=pytest.mark.slow)
        for launcher in (TORCHRUN, ACCELERATE)
        for engine in ("fsdp2", "deepspeed", "fairscale")
        if (launcher, engine) != (ACCELERATE, "fsdp2")
    ),
]


def start(launcher: tuple[str, ...], run: Path, *options: str) -> "subprocess.Popen[str]":
    """Start a small run, without what this process's own launcher said."""
    command = [Path(sys.executable).with_name(launcher[0]), *launcher[1:]]
    words = ["scripts/train.py", "digits_vit", "--run-dir", str(run), *SMALL, *options]
    return subprocess.Popen(
        [*command, *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def status(run: Path) -> tuple[str, int, str]:
    said = json.loads((run / "status.json").read_text())
    return said["state"], said["exit_code"], said["reason"]


@pytest.mark.parametrize(("launcher", "engine"), WAYS)
def test_two_processes_train_and_stop(launcher, engine, tmp_path):
    run = tmp_path / "run"
    process = start(launcher, run, "--engine", engine, "--stop-after", "2")
    output, _ = process.communicate(timeout=240)
    assert status(run) == ("requeue", 85, "--stop-after"), output
    assert process.returncode == 1 and "exitcode  : 85" in output
    assert json.loads((run / "recipe.json").read_text())["world"] == 2
    lines = metrics.read_metrics(run / metrics.NAME)
    assert [line.batch for line in lines if line.kind == metrics.UPDATE] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_torchrun_stops_the_run_after_a_checkpoint(number, tmp_path):
    run = tmp_path / "run"
    process = start(TORCHRUN, run, "--engine", "fsdp2", "--schedule.epochs", "5000")
    end = time.monotonic() + 120
    wait_for(run / metrics.NAME)
    process.send_signal(number)
    process.communicate(timeout=60)
    while status(run)[0] == "running" and time.monotonic() < end:
        time.sleep(0.1)
    state, code, reason = status(run)
    assert (state, code) == ("requeue", 85)
    assert reason.startswith("SIGTERM" if number == signal.SIGTERM else "its launcher ended")


def test_accelerate_that_starts_one_process_of_two_is_refused(tmp_path):
    launcher = ("accelerate", "launch", "--cpu", "--num_processes", "2")
    process = start(launcher, tmp_path / "run")
    output, _ = process.communicate(timeout=120)
    assert output.count("error: accelerate launch was asked for several processes, and") == 1
    assert "returned non-zero exit status 2" in output
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_bigvit_train_is_deepspeed_on_this_machine(tmp_path):
    """On as many ranks as it is told, from any folder, with the exit code of the run."""
    command = [Path(sys.executable).with_name("bigvit"), "train", "digits_vit", "--ranks", "2"]
    done = subprocess.run(
        [*command, *SMALL, "--stop-after", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 85, done.stdout + done.stderr
    run = tmp_path / "runs" / "digits_vit"
    assert status(run) == ("requeue", 85, "--stop-after")
    assert json.loads((run / "recipe.json").read_text())["world"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1, 4, 7, 10])
def test_nobody_is_left_of_bigvit_train_that_was_killed_while_it_started(seconds, tmp_path):
    command = [Path(sys.executable).with_name("bigvit"), "train", "digits_vit", "--ranks", "2"]
    process = subprocess.Popen([*command, *SMALL, "--schedule.epochs", "5000"], cwd=tmp_path)
    time.sleep(seconds)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60

    def left() -> list[psutil.Process]:
        ours = psutil.process_iter(["cwd", "status"])
        of_run = [each for each in ours if each.info["cwd"] == str(tmp_path)]
        return [each for each in of_run if each.info["status"] != psutil.STATUS_ZOMBIE]

    while left() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert left() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["digits_vit", "--ranks", "0"], "--ranks: 0 is not allowed; it must be 1 or more"),
        (["digits_vit", "--ranks", "two"], "--ranks: two is not allowed; give a whole number"),
        (["digits_vit", "--ranks", "2", "--ranks=2"], "--ranks is given twice"),
        (["digits_vitt"], "no recipe is named 'digits_vitt'"),
        (["digits_vit", "--optim.lr", "-1"], "optim.lr: -1.0 is not allowed"),
    ],
)
def test_what_bigvit_train_cannot_start_is_refused_at_once(words, said, capsys):
    assert main(["train", *words]) == 2
    assert said in capsys.readouterr().err


def test_scripts_are_copied_and_nothing_is_written_over(tmp_path, capsys):
    assert main(["scripts", str(tmp_path / "cluster")]) == 0
    for name in ("train.py", "slurm.sbatch", "supervise.sh"):
        assert (tmp_path / "cluster" / name).read_bytes() == (ROOT / "scripts" / name).read_bytes()
    (tmp_path / "cluster" / "train.py").write_text("own")
    assert main(["scripts", str(tmp_path / "cluster")]) == 2
    assert "train.py is there already" in capsys.readouterr().err
    assert (tmp_path / "cluster" / "train.py").read_text() == "own"
