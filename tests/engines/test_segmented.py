"""UperNet is learned alike under every engine, and after a resume in mid-epoch; with statistics of
the batch, alike where it is cut into no micro-batches."""

import json
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import segmented
import tiny
import torch
from reference import Weights, distance, train_single, trained
from test_equality import ALLOWED
from test_resume import assert_equal
from torch import Tensor

from bigvit.engines.single import SingleEngine
from bigvit.layers.conv_norm import SyncBatchNorm
from bigvit.recipe import Recipe

RANKS = Path(__file__).with_name("ranks.py")
# largest of five orders of summation, torch 2.14.1 on an x86-64 CPU; and of statistics that are
# taken of halves of a batch
YARDSTICK, OF_BATCH = 3.9e-8, 4.9e-8
SGDS = {"exp_avg"}


def single(folder: Path, recipe: Recipe, order: int | None = None) -> Weights:
    micro_batch = None if order is None else segmented.MICRO_BATCH
    source = segmented.source(folder)
    return train_single(recipe, order, source=source, micro_batch=micro_batch)[0]


def by_halves(engine: SingleEngine) -> None:
    """Statistics in another order: each half's, and of these the mean."""

    def forward(self: Any, x: Tensor) -> Tensor:
        mean = torch.stack([half.mean(dim=(0, 2, 3)) for half in x.chunk(2)]).mean(dim=0)
        less = x - mean[:, None, None]
        each = [half.square().mean(dim=(0, 2, 3)) for half in less.chunk(2)]
        scale = (torch.stack(each).mean(dim=0) + self.eps).rsqrt() * self.weight
        return less * scale[:, None, None] + self.bias[:, None, None]

    for module in engine.task.modules():
        if isinstance(module, SyncBatchNorm):
            module.forward = MethodType(forward, module)


@pytest.fixture(scope="module")
def reference(two_ranks) -> Weights:
    return single(two_ranks, segmented.recipe)


@pytest.fixture(scope="module")
def of_batch(two_ranks) -> Weights:
    return single(two_ranks, segmented.whole_batch)


@pytest.fixture(scope="module")
def others(warm, two_ranks) -> Path:
    """What the slow tests look at."""
    for name in ("segmented_others", "segmented_halves_too"):
        done = warm(2, RANKS, two_ranks, name, timeout=600)
        assert done.code == 0, done.output
    return two_ranks


def assert_single(run: Path, reference: Weights) -> None:
    found = trained(run, tiny.SHORT)
    statistics = {name for name in found if name.endswith(("running_mean", "running_var"))}
    assert bool(statistics) == ("batch" in run.name)
    apart, yardstick = distance({n: found[n] for n in reference}, reference), YARDSTICK
    yardstick = OF_BATCH if statistics else YARDSTICK
    print(f"{run.name}: {apart:.2e}, {apart / yardstick:.2f} yardsticks")
    assert apart <= ALLOWED * yardstick


@pytest.mark.parametrize("way", segmented.WAYS)
def test_an_engine_equals_single(way, two_ranks, reference):
    assert_single(two_ranks / f"segmented {way}", reference)


def test_statistics_are_of_all_ranks(two_ranks):
    for apart in json.loads((two_ranks / "statistics.json").read_text()):
        assert len(apart) == 5 and max(apart.values()) < 1e-12


@pytest.mark.parametrize("way", segmented.HALVES)
def test_resumed_in_mid_epoch(way, resumed):
    assert_equal(
        resumed / f"segmented halves {way}", resumed / f"segmented {way}", tiny.SHORT, SGDS
    )


@pytest.mark.slow
def test_the_other_ways_equal_single(others, reference, of_batch):
    for way in segmented.OTHERS:
        assert_single(others / f"segmented {way}", reference)
    for way in segmented.BATCH:
        assert_single(others / f"segmented batch {way}", of_batch)


@pytest.mark.slow
def test_the_other_ways_resume_in_mid_epoch(others):
    for way in segmented.HALVES_TOO:
        halves, whole = (others / f"segmented {of}{way}" for of in ("halves ", ""))
        assert_equal(halves, whole, tiny.SHORT, SGDS)
    halves, whole = (others / f"segmented batch {of}3" for of in ("halves ", ""))
    assert_equal(halves, whole, tiny.SHORT, SGDS)


@pytest.mark.slow
def test_the_yardsticks_are_what_other_orders_of_summation_show(two_ranks, reference, of_batch):
    seen = [distance(single(two_ranks, segmented.recipe, i), reference) for i in (0, 1)]
    source = segmented.source(two_ranks)
    other = train_single(segmented.whole_batch, change=by_halves, source=source)[0]
    print(seen, distance(other, of_batch))
    assert 0 < max(seen) <= 2 * YARDSTICK
    assert 0 < distance(other, of_batch) <= 2 * OF_BATCH


@pytest.mark.slow
def test_others_lie_far_away(two_ranks, reference):
    head = segmented.head
    for name, other in (
        ("two hundredths more of the second head", replace(head, auxiliary=1.02 * head.auxiliary)),
        ("a hundredth more dropped", replace(head, dropout=0.11)),
    ):
        apart = distance(
            single(two_ranks, replace(segmented.recipe, objectives=(other,))), reference
        )
        print(f"{name}: {apart / YARDSTICK:.0f} yardsticks")
        assert apart > 100 * YARDSTICK
