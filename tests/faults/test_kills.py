"""Killed at any instant and resumed, a run ends as the one that was never killed, to the bit."""

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import psutil
import pytest
from reference import distance
from small import TINY, differing, living, ranks_of, start, wait_for

from bigvit.checkpoint.load import read_weights
from bigvit.checkpoint.manifest import batch_of
from bigvit.checkpoint.run import checkpoints_of

OPTIONS = ("--checkpoint-every", 10, "--workers", 1, "--log-every", 100)
KILLS = 10  # at each stage through the launcher: slow, and half a minute of training
LONG = ("--schedule.epochs", 30)
SHORT = ("--schedule.epochs", 4)
STAGES = [2, 3]


def words(folder: Path, stage: int | str, *more: object) -> tuple[object, ...]:
    """By DeepSpeed at a stage, or by another engine."""
    of = ("--sharding", f"zero{stage}") if isinstance(stage, int) else ("--engine", stage)
    options = (*TINY, *OPTIONS, *more, *of)
    return ("scripts/train.py", "digits_vit", *options, "--run-dir", folder, "--resume", "auto")


def run(folder: Path, stage: int, *more: object, kill_after: float | None = None, whom: str = ""):
    """Start or go on with a run, kill somebody after some seconds, and return how long it took."""
    began = time.monotonic()
    process = start(*words(folder, stage, *more))
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
        assert_done(folder, process.returncode, output)
    return seconds


def run_warm(warm, folder: Path, stage: int | str, kill_after: float | None = None, whom: str = ""):
    """The same on ranks of the warm process."""
    started = warm.start(2, *words(folder, stage, *SHORT), mortal=False)
    family = [psutil.Process(pid) for pid in started.ranks]
    try:
        if kill_after is not None:
            started.ended(kill_after)
            family += [child for rank in family for child in children_of(rank)]
            everybody = [started.launcher, *(process.pid for process in family)]
            for pid in everybody if whom == "all" else started.ranks[-1:]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        done = started.wait(240)
        _, alive = psutil.wait_procs(family, timeout=20)
        assert alive == []
    finally:
        started.kill()
    if kill_after is None:
        assert_done(folder, done.code, done.output)
    return done.seconds


def children_of(rank: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return rank.children()
    return []


def assert_done(folder: Path, code: int, output: str) -> None:
    status = json.loads((folder / "status.json").read_text())
    assert (code, status["state"]) == (0, "done"), output


def draw_kill(stage: int | str, seconds: float) -> tuple[float, str]:
    """When to kill whom; a failure can be repeated by what is printed."""
    seed = random.SystemRandom().getrandbits(32)
    draw = random.Random(seed)
    instant, whom = draw.uniform(0.2, 1) * seconds, draw.choice(["one rank", "all"])
    print(f"seed {seed}: stage {stage}, {whom} after {instant:.1f} of {seconds:.1f} s")
    return instant, whom


@pytest.fixture(scope="session")
def short_whole(warm, tmp_path_factory) -> Callable[[int], tuple[Path, float]]:
    """By stage, the last checkpoint of a run that was not killed, and the seconds that it took."""
    folder = tmp_path_factory.mktemp("short")

    @cache
    def of(stage: int) -> tuple[Path, float]:
        seconds = run_warm(warm, folder / str(stage), stage)
        return checkpoints_of(folder / str(stage))[-1], seconds

    return of


@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_killed_at_a_random_instant(stage, short_whole, warm, tmp_path):
    cut, (whole, seconds) = tmp_path / "cut", short_whole(stage)
    instant, whom = draw_kill(stage, seconds)
    run_warm(warm, cut, stage, instant, whom)
    print(checkpoints_of(cut)[-1:] if cut.exists() else "nothing")
    run_warm(warm, cut, stage)
    assert differing(checkpoints_of(cut)[-1], whole) == []


@pytest.mark.slow
def test_killed_again_and_again_and_resumed_by_another_engine(short_whole, warm, tmp_path):
    cut, (whole, seconds) = tmp_path / "cut", short_whole(2)
    saved = 0
    for engine in ("fsdp2", 3, "fairscale", 2, "fsdp2"):
        instant, whom = draw_kill(engine, seconds / 2)
        run_warm(warm, cut, engine, instant, whom)
        there = [batch_of(path) for path in checkpoints_of(cut)] if cut.exists() else []
        print(there)
        assert max(there, default=0) >= saved  # nothing that was saved is lost
        saved = max(there, default=0)
    run_warm(warm, cut, "fairscale")
    (_, found), (_, wanted) = (read_weights(path) for path in (checkpoints_of(cut)[-1], whole))
    assert batch_of(checkpoints_of(cut)[-1]) == batch_of(whole)
    print(f"{distance(found, wanted):.1e}")
    assert distance(found, wanted) < 1e-3  # at this learning rate rounding grows to 2e-4


@pytest.mark.slow
def test_killed_under_the_launcher(short_whole, tmp_path):
    """Once its first checkpoint is there; it goes on, and is done, under the launcher, too."""
    cut = tmp_path / "cut"
    process = start(*words(cut, 2, *SHORT))
    try:
        wait_for(cut / "checkpoints" / "step_00000010")
        list(ranks_of(cut).values())[-1].kill()
        process.communicate(timeout=60)
    finally:
        for left in living(cut):
            left.kill()
    run(cut, 2, *SHORT)
    assert differing(checkpoints_of(cut)[-1], short_whole(2)[0]) == []


@pytest.fixture(scope="session", params=STAGES)
def whole(request, tmp_path_factory) -> tuple[int, Path, float]:
    """A stage, a run at it that was not killed, and the seconds that it took."""
    folder = tmp_path_factory.mktemp("kills") / "whole"
    seconds = run(folder, request.param, *LONG)
    return request.param, checkpoints_of(folder)[-1], seconds


@pytest.mark.slow
@pytest.mark.parametrize("kill", range(KILLS))
def test_killed_at_a_random_instant_under_the_launcher(whole, kill, tmp_path):
    stage, last, seconds = whole
    instant, whom = draw_kill(stage, seconds)
    folder = tmp_path / "run"
    run(folder, stage, *LONG, kill_after=instant, whom=whom)
    run(folder, stage, *LONG)
    assert differing(checkpoints_of(folder)[-1], last) == []
