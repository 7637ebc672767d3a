"""Kills at random instants from the launch on: every death is named, soon, and the run that is gone
on with ends as the one that was never killed, to the bit.

    BIGVIT_KILLS=100 BIGVIT_KILLS_SEED=0 pytest -m slow tests/faults/test_hundred_kills.py
"""

import os
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from by_hand import free_port, listens
from small import ROOT, differing, living, ranks_of

from bigvit.checkpoint.run import checkpoints_of
from bigvit.training.run_folder import status_of

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("BIGVIT_KILLS", "100"))
SEED = int(os.environ.get("BIGVIT_KILLS_SEED", str(random.SystemRandom().getrandbits(32))))
SOON = 20.0  # seconds from a kill until nothing of the run is left
VICTIMS = ("launcher", "rank", "worker", "all")
RECIPE = """
from dataclasses import replace

from bigvit.recipe import Lamb, StochasticDepth
from bigvit.recipes.digits import digits_vit

small = replace(
    digits_vit,
    model=replace(
        digits_vit.model,
        embed_dim=16,
        depth=2,
        num_heads=2,
        drop_path=StochasticDepth(rate=0.3, group=4),
    ),
    optim=Lamb(lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1),
    schedule=replace(digits_vit.schedule, epochs=6),
    batch_size=48,
    ema=0.99,
)
"""


@dataclass
class Run:
    """A run of three ranks, launched."""

    folder: Path
    process: "subprocess.Popen[bytes]"
    output: Path

    def seconds_to_end(self, limit: float) -> float:
        """How long it takes until nothing of it is left, or the limit; that is killed."""
        began = time.monotonic()
        while (left := living(self.folder)) and time.monotonic() < began + limit:
            time.sleep(0.1)
        took = time.monotonic() - began
        for process in left:
            process.kill()
        self.process.wait()
        return took

    def victims(self, whom: str) -> list[psutil.Process]:
        everybody = living(self.folder)
        ranks = ranks_of(self.folder)
        of_ranks = {process.pid for process in ranks.values()}
        match whom:
            case "launcher":
                return [each for each in everybody if not _is_rank(each)]
            case "rank":
                return list(ranks.values())
            case "worker":
                return [each for each in everybody if _parent(each) in of_ranks]
        return everybody


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.Error:
        return None


def _is_rank(process: psutil.Process) -> bool:
    """A rank, or what it started."""
    try:
        return "LOCAL_RANK" in process.environ()
    except psutil.Error:
        return True


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    recipe = tmp_path_factory.mktemp("recipe") / "small.py"
    recipe.write_text(RECIPE)

    def start(folder: Path) -> Run:
        output = folder.with_suffix(".txt")
        options = ("--sharding", "zero3", "--workers", "1", "--log-every", "20")
        every = ("--checkpoint-every", "15", "--resume", "auto", "--run-dir", folder)
        launcher = Path(sys.executable).with_name("deepspeed")
        with output.open("ab") as file:
            process = subprocess.Popen(
                [
                    *(launcher, "--num_accelerators", "3", "--master_port", str(free_port())),
                    *("scripts/train.py", f"{recipe}:small", *options, *every),
                ],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Run(folder, process, output)

    return start


@pytest.fixture(scope="module")
def whole(launch, tmp_path_factory) -> tuple[Path, float]:
    """The last checkpoint of the run that is not killed, and how long it takes."""
    ends: list[tuple[float, Path]] = []
    for name in ("first", "second"):  # the first one reads all from the disk
        began = time.monotonic()
        run = launch(tmp_path_factory.mktemp("whole") / name)
        run.seconds_to_end(300)
        assert status_of(run.folder)["state"] == "done", run.output.read_text()
        ends.append((time.monotonic() - began, checkpoints_of(run.folder)[-1]))
    assert differing(ends[0][1], ends[1][1]) == []
    seconds, last = min(ends)
    return last, seconds


def settled(folder: Path) -> dict[str, Any]:
    """What a run's status says, once the last threads of the killed have let go of its lock."""
    deadline = time.monotonic() + 5
    while True:
        try:
            status = status_of(folder)
        except ValueError as error:
            return {"state": "absent", "reason": str(error)}
        if status["state"] not in ("starting", "running") or time.monotonic() > deadline:
            return status
        time.sleep(0.1)


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_kill_at_a_random_instant(kill, launch, whole, tmp_path):
    last, seconds = whole
    draw = random.Random(f"{SEED} {kill}")
    instant, whom = draw.uniform(0, seconds), draw.choice(VICTIMS)
    run = launch(tmp_path / "run")
    time.sleep(instant)
    while not (victims := run.victims(whom)) and run.process.poll() is None:
        time.sleep(0.05)  # there is none yet
    chosen = victims if whom == "all" else [draw.choice(victims)] if victims else []
    numbers = {process.pid: rank for rank, process in ranks_of(run.folder).items()}
    others = [rank for rank in ranks_of(run.folder).values() if rank not in chosen]
    listened = any(listens(rank.pid) for rank in others)
    what: Any = [" ".join(each.cmdline())[:60] for each in chosen if each.is_running()]
    for victim in chosen:
        try:
            victim.kill()
        except psutil.Error:
            pass
    took = run.seconds_to_end(60)
    said = run.output.read_text()
    about = f"seed {SEED}, kill {kill}: {whom} after {instant:.1f} of {seconds:.1f} s, {what}"
    status = settled(run.folder)
    print(f"{about}: {took:.1f} s, {status['state']} {status['reason']!r}")
    # a process that lives for a moment may be the victim (git, which says the revision): the run
    # goes on then, and is compared all the same
    assert took < SOON or status["state"] == "done", f"{about}\n{said}"
    assert chosen or status["state"] == "done", f"{about}\n{said}"
    told = f"{said}\n{status['reason']}"
    if whom != "all" and listened and status["state"] != "done":
        rank = numbers.get(chosen[0].pid, r"\d") if chosen else r"\d"
        named = r"its launcher ended" if whom == "launcher" else rf"rank [\d, rankonvm]*{rank} on "
        assert re.search(named, told), f"{about}\n{told}"
        assert status["state"] in ("error", "requeue"), f"{about}\n{status}\n{said}"
    assert status["state"] in ("absent", "killed", "error", "requeue", "done"), about
    if status["state"] == "absent":
        assert whom == "all" or not listened, f"{about}\n{said}"
    again = launch(run.folder)
    again.seconds_to_end(300)
    assert status_of(run.folder)["state"] == "done", again.output.read_text()
    assert differing(checkpoints_of(run.folder)[-1], last) == [], about
