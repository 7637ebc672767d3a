"""Stochastic depth drops what it says, evenly, and as a function of its key alone.

Shapes: L branches, B samples.
"""

import pytest
import torch
from torch import Tensor

from bigvit.layers.stochastic_depth import draw, scale_branch
from bigvit.recipe import StochasticDepth

RATES = [0.05, 0.1, 0.3, 0.5, 0.55]
GROUPED = [0.3, 0.5, 0.55]
GROUPS = [8, 16]
BRANCHES = [24, 64]
STANDARD_ERRORS = 4

every_case = [
    pytest.mark.parametrize("branches", BRANCHES),
    pytest.mark.parametrize("group", GROUPS),
    pytest.mark.parametrize("rate", RATES),
]
grouped_case = [*every_case[:2], pytest.mark.parametrize("rate", GROUPED)]


def marked(marks: list[pytest.MarkDecorator]):
    def mark(test):
        for each in marks:
            test = each(test)
        return test

    return mark


def shares(depth: StochasticDepth, branches: int) -> Tensor:
    """Share kept in each branch (L, 1), float64."""
    if not depth.grouped:
        return torch.full((branches, 1), 1 - depth.rate, dtype=torch.float64)
    return torch.tensor(depth.kept(branches), dtype=torch.float64)[:, None] / depth.group


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("rate", RATES)
def test_a_rate_above_a_tenth_is_grouped(rate: float, group: int):
    assert StochasticDepth(rate, group).grouped == (rate in GROUPED)


def test_a_rate_below_one_of_a_group_is_not_grouped():
    assert not StochasticDepth(rate=0.12, group=8).grouped
    assert StochasticDepth(rate=0.125, group=8).grouped


@marked(every_case)
def test_factors_are_zero_or_one_over_the_share_kept(rate: float, group: int, branches: int):
    depth = StochasticDepth(rate, group)
    factors = draw(depth, branches, 0, 0, (0, 4 * group))
    assert factors.shape == (branches, 4 * group) and factors.dtype == torch.float32
    kept = (1 / shares(depth, branches)).float().expand_as(factors)
    assert torch.equal(factors, torch.where(factors == 0, 0, kept))
    assert 0 < (factors == 0).sum() < factors.numel()


@marked(grouped_case)
def test_every_group_keeps_its_number_in_every_branch(rate: float, group: int, branches: int):
    depth = StochasticDepth(rate, group)
    factors = draw(depth, branches, 1, 2, (0, 32 * group)).unflatten(1, (32, group))
    counts = (factors > 0).sum(dim=2)
    assert torch.equal(counts, torch.tensor(depth.kept(branches))[:, None].expand(-1, 32))
    # so the mean of a group's factors is 1: kept * size / kept == size
    torch.testing.assert_close(factors.double().mean(2), torch.ones(branches, 32).double())


@marked(grouped_case)
def test_mean_rate_over_branches_is_the_recipes(rate: float, group: int, branches: int):
    kept = StochasticDepth(rate, group).kept(branches)
    assert len(kept) == branches and max(kept) - min(kept) <= 1
    mean = 1 - sum(kept) / (branches * group)
    assert abs(mean - rate) <= 1 / (2 * group * branches) + 1e-12
    half = 1 - sum(kept[: branches // 2]) / (branches // 2 * group)
    assert abs(half - rate) <= 1.5 / (group * branches // 2), "spread evenly"


@marked(every_case)
def test_every_position_is_kept_equally_often(rate: float, group: int, branches: int):
    depth, groups = StochasticDepth(rate, group), 4000
    factors = draw(depth, branches, 0, 0, (0, groups * group))
    kept = (factors > 0).unflatten(1, (groups, group)).double().mean(dim=1)  # (L, group)
    share = shares(depth, branches).expand_as(kept)
    variance = share * (1 - share) / groups
    by_position = (kept - share).mean(dim=0).abs()
    allowed = STANDARD_ERRORS * variance.mean(dim=0).div(branches).sqrt()
    assert torch.all(by_position <= allowed), by_position / allowed
    # over all branches and positions the squared deviations average to the variance
    ratio = ((kept - share) ** 2 / variance)[variance > 0].mean().item()
    free = group - 1 if depth.grouped else group  # a group's counts add up
    assert abs(ratio - 1) <= STANDARD_ERRORS * (2 / (free * branches)) ** 0.5


@marked(every_case)
def test_expectation_of_a_factor_is_one(rate: float, group: int, branches: int):
    depth, samples = StochasticDepth(rate, group), 400 * group
    mean = draw(depth, branches, 3, 0, (0, samples)).double().mean(dim=1, keepdim=True)
    share = shares(depth, branches)
    error = 1e-6 if depth.grouped else STANDARD_ERRORS * ((1 - share) / share / samples).sqrt()
    assert torch.all((mean - 1).abs() <= error)


@marked(every_case)
def test_a_span_is_a_slice_of_the_whole_batch(rate: float, group: int, branches: int):
    depth, size = StochasticDepth(rate, group), 64
    whole = draw(depth, branches, 0, 7, (0, size))
    unit = group if depth.grouped else 4  # per sample any position will do
    for start in range(0, size, unit):
        for stop in range(start + unit, size + 1, unit):
            part = draw(depth, branches, 0, 7, (start, stop))
            assert torch.equal(part, whole[:, start:stop])


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_draws_differ_by_seed_number_group_and_branch(rate: float, group: int):
    depth = StochasticDepth(rate, group)

    def drawn(seed: int, number: int) -> Tensor:
        return draw(depth, 24, seed, number, (0, 4 * group)) > 0

    base = drawn(0, 0)
    assert torch.equal(base, drawn(0, 0))
    # unrelated draws disagree on 2 share (1 - share) of all places, equal ones on none
    usual = 2 * rate * (1 - rate)
    pairs = {
        "seed": (base, drawn(1, 0)),
        "number": (base, drawn(0, 1)),
        "seed and number": (drawn(1, 0), drawn(0, 1)),
        "group": (base[:, : 2 * group], base[:, 2 * group :]),
        "branch": (base[::2], base[1::2]),
    }
    for what, (one, other) in pairs.items():
        error = STANDARD_ERRORS * (usual * (1 - usual) / one.numel()) ** 0.5
        assert abs((one != other).double().mean().item() - usual) <= error, what


def test_rate_zero_draws_ones():
    factors = draw(StochasticDepth(rate=0.0, group=8), 24, 0, 0, (3, 9))
    assert torch.equal(factors, torch.ones(24, 6))


def test_a_span_that_cuts_a_group_is_refused():
    with pytest.raises(AssertionError, match="whole groups"):
        draw(StochasticDepth(rate=0.5, group=8), 24, 0, 0, (0, 12))


def test_a_branch_is_scaled_by_sample():
    branch = torch.randn(3, 5, 4)
    scaled = scale_branch(branch, torch.tensor([0.0, 1.0, 2.0]))
    assert torch.equal(scaled, torch.stack([0 * branch[0], branch[1], 2 * branch[2]]))
    assert scale_branch(branch, None) is branch
