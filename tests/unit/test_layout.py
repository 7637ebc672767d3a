"""How a global batch is cut, and that every refusal names sizes that work."""

import re
from dataclasses import replace

import pytest
from each import each_of

from bigvit.recipe import Images, Recipe, StochasticDepth, batch_layout
from bigvit.recipes.deit3 import deit3_h14_in1k_126
from bigvit.recipes.digits import digits_vit


def recipe(batch_size: int, rate: float = 0.0, group: int = 8) -> Recipe:
    model = replace(digits_vit.model, drop_path=StochasticDepth(rate=rate, group=group))
    return replace(digits_vit, batch_size=batch_size, model=model)


def mixed(batch_size: int, drop_group: int, mix_group: int) -> Recipe:
    data = deit3_h14_in1k_126.data
    assert isinstance(data, Images) and data.mix is not None
    return replace(
        deit3_h14_in1k_126,
        batch_size=batch_size,
        model=replace(
            deit3_h14_in1k_126.model, drop_path=StochasticDepth(rate=0.5, group=drop_group)
        ),
        data=replace(data, mix=replace(data.mix, group=mix_group)),
    )


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def numbers(message: str, before: str, after: str = "") -> list[int]:
    """The list of numbers between two phrases of a message."""
    found = re.search(rf"{before} ([\d, .]*\d) ?{after}", message)
    return [int(n) for n in re.findall(r"\d+", found[1])] if found else []


def refusal(of: Recipe, world: int, micro: int | None = None) -> str:
    with pytest.raises(ValueError) as refused:
        batch_layout(of, world, micro)
    return str(refused.value)


@pytest.mark.parametrize("batch", [1, 2, 6, 7, 24, 60, 64, 100])
def test_the_spans_of_all_ranks_and_micro_batches_tile_the_batch(batch: int) -> None:
    for world in divisors(batch):
        for micro in (None, *divisors(batch // world)):
            layout = batch_layout(recipe(batch), world, micro)
            spans = [layout.span(r, m) for r in range(world) for m in range(layout.accumulation)]
            assert [i for span in spans for i in range(*span)] == list(range(batch))
            assert {stop - start for start, stop in spans} == {layout.micro_batch}
            assert layout.micro_batch == (batch // world if micro is None else micro)
            assert (layout.world, layout.batch_size) == (world, batch)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_micro_batches_are_made_of_whole_groups(world: int) -> None:
    grouped = recipe(96, rate=0.5, group=8)
    accepted = []
    for micro in range(1, 97):
        try:
            accepted.append(batch_layout(grouped, world, micro).micro_batch)
        except ValueError:
            continue
    assert accepted == [d for d in divisors(96 // world) if d % 8 == 0]
    assert batch_layout(grouped, world, None).micro_batch == accepted[-1]


def test_groups_of_stochastic_depth_and_of_mixing_both_count() -> None:
    both = mixed(96, drop_group=8, mix_group=6)
    assert both.groups == {"model.drop_path.group": 8, "data.mix.group": 6}
    assert batch_layout(both, 2, None).micro_batch == 48
    assert numbers(refusal(both, 1, 16), "choose one of") == [24, 48, 96]


@pytest.mark.parametrize(
    ("rate", "group", "grouped"),
    [
        (0.0, 8, False),
        (0.05, 8, False),
        (0.1, 64, False),  # up to 0.1 each sample by itself
        (0.11, 8, False),  # below 1 / group
        (0.125, 8, True),
        (0.11, 10, True),
        (0.5, 8, True),
        (0.5, 1, False),
    ],
)
def test_a_rate_is_grouped_above_a_tenth_and_from_one_of_a_group(
    rate: float, group: int, grouped: bool
) -> None:
    assert recipe(64, rate, group).groups == ({"model.drop_path.group": group} if grouped else {})
    if not grouped:
        assert batch_layout(recipe(64, rate, group), 64, 1).micro_batch == 1


@each_of("rate", [0.125, 0.2, 0.3, 0.5, 0.77])
@each_of("group", [8, 12])
@each_of("branches", [2, 8, 64])
def test_the_kept_samples_have_the_recipes_mean_rate(
    rate: float, group: int, branches: int
) -> None:
    kept = StochasticDepth(rate=rate, group=group).kept(branches)
    assert len(kept) == branches
    assert max(kept) - min(kept) <= 1
    mean = 1 - sum(kept) / (group * branches)
    assert abs(mean - rate) <= 1 / (2 * group * branches) + 1e-12


@pytest.mark.parametrize(("batch", "world", "micro"), [(64, 2, 5), (64, 2, 64), (2520, 1, 11)])
def test_a_refused_micro_batch_names_sizes_that_work(batch: int, world: int, micro: int) -> None:
    of = recipe(batch)
    offered = numbers(refusal(of, world, micro), "choose one of")
    assert offered
    assert all(batch_layout(of, world, size).micro_batch == size for size in offered)


@pytest.mark.parametrize(("batch", "world"), [(64, 3), (100, 7), (2520, 11)])
def test_a_refused_world_names_worlds_and_batches_that_work(batch: int, world: int) -> None:
    said = refusal(recipe(batch), world)
    worlds = numbers(said, "works on", "ranks")
    assert worlds and all(batch_layout(recipe(batch), n, None).world == n for n in worlds)
    (multiple,) = numbers(said, "a multiple of")
    assert all(batch_layout(recipe(multiple * k), world, None) for k in range(1, 9))


@pytest.mark.parametrize(("batch", "world"), [(64, 3), (96, 5), (2048, 48)])
def test_a_refused_world_names_sizes_of_whole_groups(batch: int, world: int) -> None:
    said = refusal(recipe(batch, rate=0.5), world)
    worlds = numbers(said, "works on", "ranks")
    assert worlds and all(batch_layout(recipe(batch, rate=0.5), n, None).world == n for n in worlds)
    (multiple,) = numbers(said, "a multiple of")
    for k in range(1, 9):
        batch_layout(recipe(multiple * k, rate=0.5), world, None)


@pytest.mark.parametrize(
    ("batch", "world"),
    [
        (24, 2),  # 12 a rank, groups of 8
        (64, 16),  # 4 a rank
        (12, 5),  # not on any number of ranks: only another batch works
        (12, 1),
    ],
)
def test_a_share_without_whole_groups_is_refused_with_sizes_that_work(
    batch: int, world: int
) -> None:
    of = recipe(batch, rate=0.5)
    said = refusal(of, world)
    assert "works on  ranks" not in said
    worlds, multiples = numbers(said, "works on", "ranks"), numbers(said, "a multiple of")
    assert worlds or multiples, f"no size is named: {said}"
    for n in worlds:
        batch_layout(of, n, None)
    for multiple in multiples:
        batch_layout(recipe(multiple, rate=0.5), world, None)
