"""Killed at any instant and resumed, a run ends as the one that was never killed, to the bit."""

import json
import random
import time
from pathlib import Path

import psutil
import pytest
from small import TINY, differing, living, ranks_of, start

from bigvit.checkpoint.start import checkpoints_of

OPTIONS = ("--schedule.epochs", 30, "--checkpoint-every", 25, "--workers", 1, "--log-every", 100)
KILLS = 10  # at each stage; one of them in the ordinary tests


def run(folder: Path, stage: int, kill_after: float | None = None, whom: str = "") -> float:
    """Start or go on with a run, kill somebody after some seconds, and return how long it took."""
    began = time.monotonic()
    process = start(
        "scripts/train.py",
        "digits_vit",
        *(*TINY, *OPTIONS, "--sharding", f"zero{stage}"),
        *("--run-dir", folder, "--resume", "auto"),
    )
    try:
        if kill_after is not None:
            time.sleep(kill_after)
            victims = living(folder) if whom == "all" else list(ranks_of(folder).values())[-1:]
            for victim in victims:
                victim.kill()
        output, _ = process.communicate(timeout=240)
        # the other ranks end with the launcher, and data workers with their rank
        _, alive = psutil.wait_procs(living(folder), timeout=20)
        assert alive == []
    finally:
        for left in living(folder):
            left.kill()
    seconds = time.monotonic() - began
    if kill_after is None:
        status = json.loads((folder / "status.json").read_text())
        assert (process.returncode, status["state"]) == (0, "done"), output
    return seconds


@pytest.fixture(scope="session", params=[2, 3])
def whole(request, tmp_path_factory) -> tuple[int, Path, float]:
    """A stage, a run at it that was not killed, and the seconds that it took."""
    folder = tmp_path_factory.mktemp("kills") / "whole"
    seconds = run(folder, request.param)
    return request.param, checkpoints_of(folder)[-1], seconds


@pytest.mark.parametrize(
    "kill", [pytest.param(i, marks=[] if i == 0 else pytest.mark.slow) for i in range(KILLS)]
)
def test_killed_at_a_random_instant(whole, kill, tmp_path):
    stage, last, seconds = whole
    seed = random.SystemRandom().getrandbits(32)
    draw = random.Random(seed)
    instant, whom = draw.uniform(0.2, 1) * seconds, draw.choice(["one rank", "all"])
    folder = tmp_path / "run"
    run(folder, stage, instant, whom)
    found = checkpoints_of(folder)
    print(
        f"seed {seed}: stage {stage}, {whom} after {instant:.1f} of {seconds:.1f} s, {found[-1:]}"
    )
    run(folder, stage)
    assert differing(checkpoints_of(folder)[-1], last) == []
