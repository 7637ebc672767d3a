"""Initial weights and all that is drawn are what they were when numbers_before.py wrote them."""

import json

import pytest
from numbers_before import FILE, built_from, drawn, layout, sums

from bigvit.recipe.find import all_recipes

RECIPES = all_recipes()
BEFORE = json.loads(FILE.read_text())
BUILT = [name for name, said in BEFORE.items() if "layout" in said]
DRAWN = [name for name, said in BEFORE.items() if "drawn" in said]


def test_every_recipe_of_then_is_here_and_starts_as_it_did():
    assert BEFORE.keys() <= RECIPES.keys()
    for name, said in BEFORE.items():
        if other := said.get("weights as"):
            assert built_from(RECIPES[name]) == built_from(RECIPES[other]), name


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_is_what_was_drawn(name: str):
    assert drawn(RECIPES[name]) == BEFORE[name]["drawn"]


@pytest.mark.parametrize(
    "names", [BUILT[::4], pytest.param(BUILT, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_parameters_and_the_smaller_weights_are_what_they_were(names: list[str]):
    for name in names:
        assert layout(RECIPES[name]) == BEFORE[name]["layout"], name
        assert sums(RECIPES[name]) == pytest.approx(BEFORE[name]["few"], rel=1e-6), name


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BUILT if "all" in BEFORE[name]])
def test_all_weights_are_what_they_were(name: str):
    assert sums(RECIPES[name], None) == pytest.approx(BEFORE[name]["all"], rel=1e-6)
