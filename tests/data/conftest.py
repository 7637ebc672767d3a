"""Lets the tests here import pictures.py and forms.py, and run whole trainings in this process."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bigvit.ranks.stopping import SIGNALS

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found of shards is kept in the test's own folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def own_signals() -> Iterator[None]:
    """main() takes the signals over; give them back."""
    kept = [signal.getsignal(number) for number in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, kept, strict=True):
        signal.signal(number, handler)
