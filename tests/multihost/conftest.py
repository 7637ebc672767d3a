"""The pair of hosts, made once; where it cannot be made, its tests are skipped and say why."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

here = Path(__file__).parent
sys.path[:0] = [str(here), str(here.parent / "faults"), str(here.parent / "engines")]
import hosts as two  # noqa: E402


@pytest.fixture(scope="session")
def hosts(tmp_path_factory) -> Iterator[two.Hosts]:
    """Two hosts that share this machine's files."""
    if reason := two.missing():
        pytest.skip(reason)
    with two.two_hosts(tmp_path_factory.mktemp("hosts")) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_left(request) -> Iterator[None]:
    """What a test leaves running on the hosts is ended, and is its failure."""
    yield
    if "hosts" in request.fixturenames:
        left = request.getfixturevalue("hosts").end_ranks()
        assert left == []
