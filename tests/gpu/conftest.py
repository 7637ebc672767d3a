"""Tests that need a GPU. With BIGVIT_PRETEND=1 they run on the device that tests/device pretends
where that is in force, and else on the CPU."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bigvit.ranks.joining import alone

RANKS = Path(__file__).with_name("ranks.py")


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device that a run would take here."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
    found = alone().device
    if found.type == "cpu" and os.environ.get("BIGVIT_PRETEND") != "1":
        pytest.skip("there is no GPU here; BIGVIT_PRETEND=1 goes without")
    return found


@pytest.fixture(scope="session")
def world(device: torch.device) -> int:
    """Ranks: a power of two, on a GPU each."""
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed")
    if device.type != "cuda":
        return 2
    return 1 << min(torch.cuda.device_count(), 8).bit_length() - 1


Scenarios = Callable[..., Path]


@pytest.fixture(scope="session")
def scenarios(
    device: torch.device, world: int, request: pytest.FixtureRequest, tmp_path_factory: Any
) -> Scenarios:
    """Run scenarios of ranks.py in one launch; returns the folder with all that was left so far."""
    folder = tmp_path_factory.mktemp("gpu")
    # a process that has seen a GPU cannot hand it to those it forks
    start = request.getfixturevalue("launch" if device.type == "cuda" else "warm")

    def run(*names: str) -> Path:
        timeout = 100 if device.type == "cuda" else 400  # other tests run beside these
        done = start(world, RANKS, folder, *names, timeout=timeout)
        assert done.code == 0, done.output[-5000:]
        return folder

    return run
