"""Grafit and DINO together, with small crops of another size, are the same under every engine: with
their memory, their centre and the average that follows; stopped, resumed here or elsewhere."""

from pathlib import Path

import grafit_dino
import pytest
from reference import Weights, distance, train_single
from test_followed import held, made
from test_resume import assert_equal

from bigvit.data.sources import open_source

KINDS = ("weight", "ema", "kept")
YARDSTICKS = {  # largest of five orders of summation, as in test_equality.py
    "weights": 2.5e-7,
    "ema": 1.3e-7,
    "kept heads.grafit": 1.4e-6,
    "kept heads.dino": 1.5e-7,
}
ALLOWED = 10


def parts(found: Weights) -> dict[str, Weights]:
    """By what has a yardstick of its own."""
    return {
        of: {n: w for n, w in found.items() if n.startswith("" if of == "weights" else of)}
        for of in YARDSTICKS
    } | {"weights": {n: w for n, w in found.items() if " " not in n}}


@pytest.fixture(scope="module")
def runs(warm, tmp_path_factory) -> Path:
    """Runs on two ranks; stopped ones, resumed on one."""
    folder = tmp_path_factory.mktemp("grafit_dino")
    return made(warm, folder, "grafit_dino", "grafit_dino_resumed")


@pytest.fixture(scope="module")
def more_runs(warm, tmp_path_factory) -> Path:
    """The same of the slow tests."""
    folder = tmp_path_factory.mktemp("grafit_dino_more")
    return made(warm, folder, "grafit_dino_more", "grafit_dino_resumed_more")


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Weights:
    root = grafit_dino.write_digits(tmp_path_factory.mktemp("digits"))
    source = open_source(grafit_dino.data, "train", root)
    updates = grafit_dino.UPDATES
    return train_single(grafit_dino.recipe, source=source, kinds=KINDS, updates=updates)[0]


def assert_near(run: Path, reference: Weights) -> None:
    """All that a run left, beside what `single` did."""
    found = parts(held(run, grafit_dino.UPDATES))
    apart = {of: distance(found[of], theirs) for of, theirs in parts(reference).items()}
    shown = {of: round(each / YARDSTICKS[of], 2) for of, each in apart.items()}
    print(f"{run.name}, yardsticks: {shown}")
    assert max(shown.values()) <= ALLOWED


WAYS = [
    *((way, "runs") for way in grafit_dino.ORDINARY),
    *(pytest.param(way, "more_runs", marks=pytest.mark.slow) for way in grafit_dino.MORE),
]


@pytest.mark.parametrize("run", ["whole", "halves"])
@pytest.mark.parametrize(("way", "where"), WAYS)
def test_two_ranks_equal_single(way, where, run, request, reference):
    """Without a stop; and stopped in mid-epoch, and resumed on one rank."""
    assert_near(request.getfixturevalue(where) / f"{run} {way}", reference)


@pytest.mark.parametrize(("way", "where"), WAYS)
def test_resumed_on_as_many_ranks_bit_for_bit(way, where, request):
    folder = request.getfixturevalue(where)
    assert_equal(folder / f"again {way}", folder / f"whole {way}", grafit_dino.UPDATES)
