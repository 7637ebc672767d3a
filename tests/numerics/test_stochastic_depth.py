"""Stochastic depth drops what it says, evenly, and as a function of its key alone.

Shapes: L branches, B samples.
"""

import pytest
import torch
from each import each_of
from torch import Tensor

from bigvit.layers.stochastic_depth import Factors, Kept, Order, Span, add_branches, draw, drops
from bigvit.recipe import StochasticDepth

RATES = [0.05, 0.1, 0.3, 0.5, 0.55]
GROUPED = [0.3, 0.5, 0.55]
GROUPS = [8, 16]
BRANCHES = [24, 64]
STANDARD_ERRORS = 4

every_case = [
    each_of("branches", BRANCHES),
    each_of("group", GROUPS),
    each_of("rate", RATES),
]
grouped_case = [*every_case[:2], each_of("rate", GROUPED)]


def marked(marks: list):
    def marked(test):
        for mark in marks:
            test = mark(test)
        return test

    return marked


def factors_of(depth: StochasticDepth, branches: int, seed: int, number: int, span: Span) -> Tensor:
    """What is drawn, as what each sample's branch counts (L, B)."""
    start, stop = span
    factors_LB = torch.zeros(branches, stop - start)
    for row, drop in zip(
        factors_LB, drops(depth, branches, draw(depth, branches, seed, number, span)), strict=True
    ):
        match drop:
            case Kept():
                row[drop.samples] = drop.scale
            case Tensor():
                row.copy_(drop)
            case None:
                row.fill_(1)
    return factors_LB


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
    factors = factors_of(depth, branches, 0, 0, (0, 4 * group))
    assert factors.shape == (branches, 4 * group) and factors.dtype == torch.float32
    kept = (1 / shares(depth, branches)).float().expand_as(factors)
    assert torch.equal(factors, torch.where(factors == 0, 0, kept))
    assert 0 < (factors == 0).sum() < factors.numel()


@marked(grouped_case)
def test_every_group_keeps_its_number_in_every_branch(rate: float, group: int, branches: int):
    depth = StochasticDepth(rate, group)
    factors = factors_of(depth, branches, 1, 2, (0, 32 * group)).unflatten(1, (32, group))
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


def test_the_summary_gives_the_rates_of_all_branches():
    said = StochasticDepth(rate=0.5, group=8).summary(64)
    assert said == (
        "stochastic depth 0.5: 4 of every 8 samples kept in each of 64 branches (mean rate 0.5000)"
    )
    # 24 * 8 * 0.45 = 86.4: 86 samples, 14 branches of 4 and 10 of 3
    said = StochasticDepth(rate=0.55, group=8).summary(24)
    assert said == (
        "stochastic depth 0.55: 3 of every 8 samples kept in 10 of 24 branches, 4 in the others "
        "(mean rate 0.5521)"
    )
    assert "dropped by itself" in StochasticDepth(rate=0.05, group=8).summary(24)
    assert "all samples" in StochasticDepth(rate=0.0, group=8).summary(24)


@marked(every_case)
def test_every_position_is_kept_equally_often(rate: float, group: int, branches: int):
    depth, groups = StochasticDepth(rate, group), 4000
    factors = factors_of(depth, branches, 0, 0, (0, groups * group))
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
    mean = factors_of(depth, branches, 3, 0, (0, samples)).double().mean(dim=1, keepdim=True)
    share = shares(depth, branches)
    error = 1e-6 if depth.grouped else STANDARD_ERRORS * ((1 - share) / share / samples).sqrt()
    assert torch.all((mean - 1).abs() <= error)


@marked(every_case)
def test_a_span_is_a_slice_of_the_whole_batch(rate: float, group: int, branches: int):
    depth, size = StochasticDepth(rate, group), 64
    whole = factors_of(depth, branches, 0, 7, (0, size))
    unit = group if depth.grouped else 4  # per sample any position will do
    for start in range(0, size, unit):
        for stop in range(start + unit, size + 1, unit):
            part = factors_of(depth, branches, 0, 7, (start, stop))
            assert torch.equal(part, whole[:, start:stop])


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_draws_differ_by_seed_number_group_and_branch(rate: float, group: int):
    depth = StochasticDepth(rate, group)

    def drawn(seed: int, number: int) -> Tensor:
        return factors_of(depth, 24, seed, number, (0, 4 * group)) > 0

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


def test_rate_zero_draws_nothing():
    assert draw(StochasticDepth(rate=0.0, group=8), 24, 0, 0, (3, 9)) is None


def test_a_span_that_cuts_a_group_is_refused():
    with pytest.raises(AssertionError, match="whole groups"):
        draw(StochasticDepth(rate=0.5, group=8), 24, 0, 0, (0, 12))


@marked(grouped_case)
def test_rows_are_the_kept_positions_then_the_others_each_ascending(
    rate: float, group: int, branches: int
):
    depth = StochasticDepth(rate, group)
    drawn = draw(depth, branches, 0, 3, (2 * group, 6 * group))
    assert isinstance(drawn, Order)
    kept_LB = drawn.kept
    assert (kept_LB.shape, kept_LB.dtype) == ((branches, 4 * group), torch.int64)
    for row, k in zip(kept_LB.tolist(), depth.kept(branches), strict=True):
        assert sorted(row) == list(range(4 * group))
        assert row[: 4 * k] == sorted(row[: 4 * k]) and row[4 * k :] == sorted(row[4 * k :])


def test_numbers_drawn_are_those_of_masks():
    """As the version that masked drew them; another draw would change every run."""
    depth = StochasticDepth(rate=0.5, group=4)
    drawn = draw(depth, 3, 0, 5, (0, 8))
    assert isinstance(drawn, Order) and drawn.kept.tolist() == [
        [0, 3, 4, 6, 1, 2, 5, 7],
        [1, 2, 5, 6, 0, 3, 4, 7],
        [1, 3, 5, 7, 0, 2, 4, 6],
    ]
    each = draw(StochasticDepth(rate=0.1, group=4), 2, 0, 5, (1, 19))
    assert isinstance(each, Factors)
    assert (each.factors == 0).nonzero().tolist() == [[0, 11], [0, 14], [1, 0]]


def test_branches_are_scaled_by_sample():
    x, branch = torch.randn(3, 5, 4), torch.randn(3, 5, 4)
    added = add_branches(x, [lambda _: branch], [torch.tensor([0.0, 1.0, 2.0])])
    assert torch.equal(added, torch.stack([x[0], x[1] + branch[1], x[2] + 2 * branch[2]]))
    assert torch.equal(add_branches(x, [lambda _: branch], [None]), x + branch)


@pytest.mark.parametrize("skip", [True, False])
def test_branches_side_by_side_read_the_same_x(skip: bool):
    x = torch.arange(1.0, 5)[:, None, None]
    keep = [torch.tensor([0, 1]), torch.tensor([1, 2])]
    drop = [Kept(each, 2.0) for each in keep]
    if not skip:
        drop = [torch.tensor([2.0, 2, 0, 0]), torch.tensor([0.0, 2, 2, 0])]
    added = add_branches(x.clone(), [lambda x: x, lambda x: 10 * x], drop)
    assert added.flatten().tolist() == [1 + 2, 2 + 4 + 40, 3 + 60, 4]


def test_a_dropped_sample_is_not_computed():
    seen: list[int] = []

    def branch(x: Tensor) -> Tensor:
        seen.append(len(x))
        return x

    depth = StochasticDepth(rate=0.3, group=8)
    drop = drops(depth, 6, draw(depth, 6, 0, 0, (0, 16)))
    for each in drop:
        add_branches(torch.zeros(16, 1, 1), [branch], [each])
    assert seen == [2 * k for k in depth.kept(6)] and set(seen) == {10, 12}
