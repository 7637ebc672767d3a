"""ResMLP with class-MLP, at any stage and under fsdp2, is what `single` trains; a run that was
stopped and went on has the same bits."""

from dataclasses import replace
from pathlib import Path

import pytest
import resmlp
import tiny
from reference import Weights, distance, train_single, trained
from test_resume import assert_equal

YARDSTICKS = {"adamw": 1.4e-7, "lamb": 1.4e-7}  # largest of five orders, measured once
ALLOWED = 10


@pytest.fixture(scope="session")
def singles() -> dict[str, Weights]:
    return {name: train_single(recipe)[0] for name, recipe in resmlp.RECIPES.items()}


@pytest.mark.parametrize(("name", "way"), resmlp.ORDINARY)
def test_a_way_equals_single(name, way, cait_ranks, singles):
    assert_single(cait_ranks, name, way, singles)


@pytest.mark.parametrize("way", resmlp.HALVES)
def test_a_stopped_run_goes_on_with_the_same_bits(way, cait_ranks):
    assert_equal(
        cait_ranks / f"resmlp halves {way}", cait_ranks / f"resmlp adamw {way}", tiny.SHORT
    )


@pytest.mark.slow
def test_the_other_ways_equal_single(cait_ranks, singles, warm):
    done = warm(2, Path(__file__).with_name("ranks.py"), cait_ranks, "resmlp_other_runs")
    assert done.code == 0, done.output
    for name, way in resmlp.EVERY:
        assert_single(cait_ranks, name, way, singles)


def assert_single(folder: Path, name: str, way: object, singles: dict[str, Weights]) -> None:
    weights = trained(folder / f"resmlp {name} {way}", tiny.SHORT)
    found = distance(weights, singles[name])
    print(f"{name}, {way}: {found:.1e}, {found / YARDSTICKS[name]:.2f} yardsticks")
    assert found <= ALLOWED * YARDSTICKS[name]


def test_a_wrong_variant_lies_far_away(singles):
    rate = replace(tiny.resmlp_adamw.model.drop_path, rate=0.25)
    wrong = replace(tiny.resmlp_adamw, model=replace(tiny.resmlp_adamw.model, drop_path=rate))
    found = distance(train_single(wrong)[0], singles["adamw"])
    print(f"{found / YARDSTICKS['adamw']:.0f} yardsticks")
    assert found > 100 * YARDSTICKS["adamw"]
