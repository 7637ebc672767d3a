"""A run to break."""

import shutil
import sys
from pathlib import Path

import pytest

from bigvit.train import main

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "engines")]
from small import TINY  # noqa: E402


@pytest.fixture(scope="session")
def stopped_run(tmp_path_factory) -> Path:
    """A run of `digits_vit`, tiny, stopped on request after two checkpoints."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    options = ("--run-dir", str(folder), "--workers", "0", "--checkpoint-every", "2")
    code = main(["digits_vit", *TINY, "--engine", "single", *options, "--stop-after", "4"])
    assert code == 85
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in."""
    monkeypatch.chdir(tmp_path)  # where a default run folder would be made
    return tmp_path


@pytest.fixture
def run(folder: Path, stopped_run: Path) -> Path:
    """A copy of a stopped run in it."""
    return Path(shutil.copytree(stopped_run, folder / "run"))
