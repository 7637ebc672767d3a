"""PatchConvNet, and a query a class, are trained by any engine as by `single`, and resumed to the
bit."""

from dataclasses import replace
from pathlib import Path

import pooling
import pytest
import tiny
from reference import Weights, distance, train_single, trained
from test_resume import assert_equal

YARDSTICKS = {"patchconvnet": 3.8e-7, "swin": 1.9e-7}  # largest of five orders, measured once
ALLOWED = 10
RANKS = Path(__file__).with_name("ranks.py")


@pytest.fixture(scope="module")
def singles() -> dict[str, Weights]:
    return {name: train_single(recipe)[0] for name, recipe in pooling.RECIPES.items()}


@pytest.fixture(scope="module")
def folder(warm, tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("pooling")
    done = warm(2, RANKS, made, "pooling_runs", timeout=600)
    assert done.code == 0, done.output
    return made


def assert_single(folder: Path, name: str, way: pooling.Way, singles: dict[str, Weights]) -> None:
    weights = trained(folder / f"{name} {way}", tiny.SHORT)
    found = distance(weights, singles[name])
    print(f"{name}, {way}: {found:.1e}, {found / YARDSTICKS[name]:.2f} yardsticks")
    assert found <= ALLOWED * YARDSTICKS[name]


@pytest.mark.parametrize(("name", "way"), pooling.ORDINARY)
def test_an_engine_equals_single(name, way, folder, singles):
    assert_single(folder, name, way, singles)


@pytest.mark.slow
def test_the_other_stages_equal_single(folder, singles, warm):
    done = warm(2, RANKS, folder, "pooling_other_runs", timeout=600)
    assert done.code == 0, done.output
    for name, way in pooling.EVERY:
        assert_single(folder, name, way, singles)


@pytest.mark.parametrize("way", pooling.HALVES)
def test_a_resumed_run_has_the_bits_of_a_whole_one(way, folder):
    assert_equal(folder / f"halves {way}", folder / f"patchconvnet {way}", tiny.SHORT)


@pytest.mark.parametrize("name", pooling.RECIPES)
def test_a_wrong_variant_lies_far_away(name, singles):
    recipe = pooling.RECIPES[name]
    rate = replace(recipe.model.drop_path, rate=0.25)
    wrong = replace(recipe, model=replace(recipe.model, drop_path=rate))
    found = distance(train_single(wrong)[0], singles[name])
    print(f"{name}: {found / YARDSTICKS[name]:.0f} yardsticks")
    assert found > 100 * YARDSTICKS[name]
