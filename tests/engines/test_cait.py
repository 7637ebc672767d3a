"""CaiT at any stage is what `single` trains: two stages, talking heads, and class attention."""

from dataclasses import replace
from pathlib import Path

import cait
import pytest
import tiny
from reference import Weights, distance, train_single, trained

YARDSTICKS = {"adamw": 6.3e-7, "lamb": 6.3e-7}  # largest of five orders, measured once
ALLOWED = 10


@pytest.fixture(scope="session")
def singles() -> dict[str, Weights]:
    return {name: train_single(recipe)[0] for name, recipe in cait.RECIPES.items()}


@pytest.mark.parametrize(("name", "stage"), cait.ORDINARY)
def test_a_stage_equals_single(name, stage, cait_ranks, singles):
    assert_single(cait_ranks, name, stage, singles)


@pytest.mark.slow
def test_the_other_stages_equal_single(cait_ranks, singles, warm):
    """A ViT at every stage, with both optimizers, is in test_equality.py and test_lamb.py."""
    done = warm(2, Path(__file__).with_name("ranks.py"), cait_ranks, "cait_other_runs")
    assert done.code == 0, done.output
    for name, stage in cait.EVERY:
        assert_single(cait_ranks, name, stage, singles)


def assert_single(folder: Path, name: str, stage: int, singles: dict[str, Weights]) -> None:
    weights = trained(folder / f"{name} {stage}", tiny.SHORT)
    found = distance(weights, singles[name])
    print(f"{name}, stage {stage}: {found:.1e}, {found / YARDSTICKS[name]:.2f} yardsticks")
    assert found <= ALLOWED * YARDSTICKS[name]


def test_a_wrong_variant_lies_far_away(singles):
    rate = replace(tiny.cait_adamw.model.drop_path, rate=0.25)
    wrong = replace(tiny.cait_adamw, model=replace(tiny.cait_adamw.model, drop_path=rate))
    found = distance(train_single(wrong)[0], singles["adamw"])
    print(f"{found / YARDSTICKS['adamw']:.0f} yardsticks")
    assert found > 100 * YARDSTICKS["adamw"]
