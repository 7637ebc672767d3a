"""Any of timm's models on two ranks, at stages 1 and 3, is what `single` trains; it is resumed with
the same bits, and timm loads its export with the same logits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm_models
from timm_list import ARCHITECTURES, QUICK, REFUSED

from bigvit.recipe import StochasticDepth

RANKS = Path(__file__).with_name("ranks.py")
ALLOWED = 2e-5  # of the way that training went; measured: 1e-6 as a rule
YARDSTICKS = 10  # allowed above that: what a last bit of each weight changes, in `single`


@pytest.fixture(scope="module")
def quick(warm, tmp_path_factory) -> dict[str, Any]:
    return run(warm, tmp_path_factory.mktemp("timm"), "timm_models")


@pytest.fixture(scope="module")
def rest(warm, tmp_path_factory) -> dict[str, Any]:
    return run(warm, tmp_path_factory.mktemp("timm"), "timm_models_all", "timm_fsdp2")


def run(warm, folder: Path, *names: str) -> dict[str, Any]:
    done = warm(2, RANKS, folder, *names, timeout=3600)
    assert done.code == 0, done.output
    return json.loads((folder / "timm_models.json").read_text())


def assert_same(families: tuple[str, ...], found: dict[str, Any]) -> None:
    for family in families:
        yardstick = found[family].pop("yardstick")
        allowed = max(ALLOWED, YARDSTICKS * yardstick)
        # BatchNorm over few cells, and what follows a maximum, magnify rounding
        assert allowed < 1e-2 or found[family]["batch_norm"], (family, yardstick)
        del found[family]["batch_norm"]
        for how, seen in found[family].items():
            print(f"{family}, {how}: {seen}, of {allowed:.1e} allowed")
            assert seen["apart"] <= allowed, (family, how, seen)
            assert seen.get("resumed", True) and seen.get("exported", 0.0) <= 1e-5, (family, seen)
        assert any("resumed" in seen for seen in found[family].values())


def test_some_are_trained_as_single_trains_them(quick) -> None:
    assert_same(QUICK, quick)


@pytest.mark.slow
def test_all_are_trained_as_single_trains_them(rest) -> None:
    """Of every family of timm's that has stochastic depth."""
    families = tuple(ARCHITECTURES.keys() - REFUSED.keys())
    assert len(families) >= 40
    assert_same(families, rest)


def test_a_wrong_variant_lies_far_away() -> None:
    recipe = timm_models.recipe_of("pit")
    first, last = timm_models.train_alone(recipe)
    drop_path = StochasticDepth(rate=0.3, group=timm_models.MICRO)
    wrong = replace(recipe, model=replace(recipe.model, drop_path=drop_path))
    assert timm_models.apart(timm_models.train_alone(wrong)[1], last, first) > 1000 * ALLOWED
