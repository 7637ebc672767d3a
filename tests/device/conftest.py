"""Ranks whose accelerator is the pretend device."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Warm

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "path"), str(HERE.parent / "engines")]
from pretend.build import library, unavailable  # noqa: E402


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Variables by which a process has the device: it is built when it is first asked for."""
    if reason := unavailable():
        pytest.skip(reason)
    library()
    path = os.pathsep.join(filter(None, [str(HERE / "path"), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "PRETEND": "1", "PRETEND_DEVICES": "4"}


@pytest.fixture(scope="session")
def on_device(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Warm]:
    """As `warm`, with the device."""
    made = Warm(tmp_path_factory.mktemp("warm_device"), environment)
    yield made
    made.process.kill()
    made.process.communicate()


@pytest.fixture(scope="session")
def device_runs(on_device: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of what two ranks on the device did."""
    folder = tmp_path_factory.mktemp("device")
    done = on_device(2, HERE / "runs.py", folder, timeout=300)
    assert done.code == 0, done.output
    return folder
