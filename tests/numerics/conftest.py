"""A small ViT on real digits, and its micro-batches."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bigvit.data.batch import Batch
from bigvit.data.loader import train_batches
from bigvit.data.sources import open_source
from bigvit.layers.stochastic_depth import Dropped, Factors, Kept, drops
from bigvit.recipe import Recipe, StochasticDepth, batch_layout
from bigvit.recipe.find import find_recipe
from bigvit.task import Task

sys.path.insert(0, str(Path(__file__).parent))  # randomised.py

Masked = Callable[[StochasticDepth, int, Dropped], Factors]
Batches = Callable[[Recipe, int], Iterator[list[Batch]]]


@pytest.fixture
def tiny() -> Recipe:
    """Two blocks of width 16; one sample of four is dropped in every branch."""
    _, recipe = find_recipe("digits_vit")
    drop = StochasticDepth(rate=0.25, group=4)
    model = replace(recipe.model, embed_dim=16, depth=2, num_heads=2, drop_path=drop)
    return replace(recipe, model=model, batch_size=24)


@pytest.fixture
def batches() -> Batches:
    """(recipe, parts) -> the recipe's global batches, each cut into so many micro-batches."""

    def make(recipe: Recipe, parts: int) -> Iterator[list[Batch]]:
        layout = batch_layout(recipe, 1, recipe.batch_size // parts)
        source = open_source(recipe.data, "train")
        return train_batches(source, recipe, layout, 0, 0, 0, Task(recipe).draws)

    return make


@pytest.fixture(scope="session")
def masked() -> Masked:
    """(depth, branches, draws) -> the same draws, as factors of the branches."""

    def make(depth: StochasticDepth, branches: int, draws: Dropped) -> Factors:
        if isinstance(draws, Factors):
            return draws
        assert draws is not None
        factors_LB = torch.zeros(draws.kept.shape)
        for row, drop in zip(factors_LB, drops(depth, branches, draws), strict=True):
            assert isinstance(drop, Kept)
            row[drop.samples] = drop.scale
        return Factors(factors_LB)

    return make
