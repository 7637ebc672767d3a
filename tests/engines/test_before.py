"""Losses over engines and stages are what they were when `before.json` was written.

A number that was meant to change is written down anew, and CHANGELOG.md says why.
"""

import json
from pathlib import Path

import pytest

BEFORE = json.loads(Path(__file__).with_name("before.json").read_text())
"""By recipe: the fixture that trains it, its runs at several stages, and their common losses and
norms of gradients, update by update."""


SLOW = ("more_lamb_ranks",)
"""Fixtures of slow tests."""


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(recipe, marks=[pytest.mark.slow] * (before["fixture"] in SLOW))
        for recipe, before in BEFORE.items()
    ],
)
def test_losses_are_what_they_were(recipe: str, request: pytest.FixtureRequest):
    before = BEFORE[recipe]
    folder = request.getfixturevalue(before["fixture"])
    for run in before["runs"]:
        lines = (folder / run / "metrics.jsonl").read_text().splitlines()
        updates = [line for line in map(json.loads, lines) if "grad_norm" in line]
        for key in ("loss", "grad_norm"):
            found = [line[key] for line in updates]
            assert found == pytest.approx(before[key], rel=2e-6), f"{run}: {key}"
