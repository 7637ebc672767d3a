"""One launch a world size runs everything that needs it; the tests read what it left."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tiny.py, which the ranks import too
RANKS = Path(__file__).parent / "ranks.py"


@pytest.fixture(scope="session")
def two_ranks(launch, tmp_path_factory) -> Path:
    """Folder of the runs on two ranks, none of them resumed yet in new processes."""
    folder = tmp_path_factory.mktemp("ranks")
    names = ("whole", "frozen", "first_half", "half_precision", "half_precision_halves")
    done = launch(2, RANKS, folder, *names, "not_finite", "counts", timeout=420)
    assert done.code == 0, done.output
    return folder


@pytest.fixture(scope="session")
def three_ranks(launch, two_ranks) -> Path:
    """The same folder, after three ranks went on with a run of two."""
    shutil.copytree(two_ranks / "halves_1", two_ranks / "halves_elsewhere")
    done = launch(3, RANKS, two_ranks, "other_world", "counts")
    assert done.code == 0, done.output
    return two_ranks


@pytest.fixture(scope="session")
def resumed(launch, two_ranks, three_ranks) -> Path:
    """The same folder, after new processes went on with the stopped runs."""
    done = launch(2, RANKS, two_ranks, "second_half")
    assert done.code == 0, done.output
    return two_ranks
