"""Mixup and CutMix: how they are drawn, and what they make of images and targets.

Shapes: B images, C channels, H x W pixels, K classes.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from bigvit.data.batch import Batch
from bigvit.data.mix import MixDraws, draw, mix_images, mix_targets
from bigvit.data.prepare import Inputs, Prepare
from bigvit.data.sampler import Sampler
from bigvit.recipe import Images, ImageSize, Mix, RandomResizedCrop, Recipe, StochasticDepth, sides
from bigvit.recipe.find import find_recipe
from bigvit.task import Task

GROUPS = 20_000
KS_BOUND = 1.95  # / sqrt(n): exceeded by one sample of a thousand
BOTH = Mix(mixup=0.8, cutmix=1.0, switch=0.5, group=4)
NONE = replace(BOTH, mixup=0.0, cutmix=0.0)
DATA = Images(
    dataset="photographs",
    train_images=480,
    test_images=None,
    classes=10,
    image_size=16,
    crop=RandomResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic"),
    flip=0.5,
    augment=None,
    erasing=0.0,
    repeats=1,
    mix=BOTH,
    mean=(0.5, 0.4, 0.3),
    std=(0.25, 0.2, 0.3),
    test_crop_ratio=1.0,
    decode="exact",
    held_out=0.0,
    views=(),
    level="own",
)


def task(mix: Mix | None = BOTH) -> Task:
    _, digits = find_recipe("digits_vit")
    drop = StochasticDepth(rate=0.25, group=4)
    shape = {"embed_dim": 16, "depth": 1, "num_heads": 2, "patch_size": 8, "in_chans": 3}
    model = replace(digits.model, drop_path=drop, **shape)
    recipe: Recipe = replace(digits, model=model, data=replace(DATA, mix=mix), batch_size=48)
    return Task(recipe)


def batch(task: Task, number: int, span: tuple[int, int]) -> Batch:
    """Random pixels and classes, the same for a position whatever the span."""
    start, stop = span
    generator = torch.Generator().manual_seed(number)
    images = torch.randint(256, (48, 3, 16, 16), generator=generator, dtype=torch.uint8)
    targets = torch.randint(10, (48,), generator=generator)
    return Batch(
        images=images[start:stop],
        targets=targets[start:stop],
        ids=torch.arange(start, stop),
        slots=torch.arange(start, stop),
        number=number,
        micro=0,
        valid=torch.ones(stop - start, dtype=torch.bool),
        bad=torch.zeros(0, dtype=torch.int64),
        mix=draw(task.recipe.data, 0, number, span),
        draws=task.draws(number, span),
    )


def prepared(task: Task, number: int, span: tuple[int, int]) -> Inputs:
    return Prepare(task.recipe)(batch(task, number, span))


def drawn(mix: Mix, size: ImageSize, seed: int, number: int, span: tuple[int, int]) -> MixDraws:
    found = draw(replace(DATA, mix=mix, image_size=size), seed, number, span)
    assert found is not None
    return found


def many(mix: Mix, size: int = 32, seed: int = 0) -> MixDraws:
    """One row a group."""
    assert mix.group == 2
    draws = drawn(mix, size, seed, 3, (0, 2 * GROUPS))
    assert all(torch.equal(values[::2], values[1::2]) for values in draws)
    return MixDraws(*(values[::2] for values in draws))


@pytest.mark.parametrize("span", [(0, 4), (4, 8), (0, 24), (24, 48), (44, 48), (12, 40)])
def test_draws_of_a_span_are_a_slice_of_the_whole(span: tuple[int, int], masked):
    depth, branches = task().recipe.model.drop_path, task().recipe.model.branches
    whole, part = (
        masked(depth, branches, task().draws(7, each).model).factors for each in ((0, 48), span)
    )
    assert torch.equal(part, whole[:, slice(*span)])
    for values, all_values in zip(
        *(drawn(BOTH, 16, 0, 7, s) for s in (span, (0, 48))), strict=True
    ):
        assert torch.equal(values, all_values[slice(*span)])


def test_inputs_of_a_span_are_a_slice_of_the_whole():
    mixing = task()
    whole = prepared(mixing, 7, (0, 48))
    for start, stop in ((0, 24), (24, 48), (40, 44)):
        some = prepared(mixing, 7, (start, stop))
        assert torch.equal(some.images, whole.images[start:stop])
        assert torch.equal(some.targets.classes, whole.targets.classes[start:stop])
        assert torch.equal(some.targets.dense, whole.targets.dense[start:stop])


def test_draws_differ_by_group_batch_and_seed():
    draws = [drawn(BOTH, 16, seed, number, (0, 48)) for seed, number in product((0, 1), (0, 1))]
    targets = torch.cat([d.target.unflatten(0, (-1, 4)) for d in draws])
    assert (targets == targets[:, :1]).all(), "a group shares one draw"
    some = targets[:, 0][(targets[:, 0] > 0) & (targets[:, 0] < 1)].tolist()
    assert len(some) > 40
    assert len(set(some)) > 0.8 * len(some)  # CutMix's areas are few


@pytest.mark.parametrize("switch", [0.0, 0.3, 0.5])
def test_cutmix_is_chosen_as_often_as_the_recipe_says(switch: float):
    blend = many(Mix(0.8, 1.0, switch, 2)).blend
    cut = (blend == 1).double().mean().item()
    assert abs(cut - switch) <= 3 * (switch * (1 - switch) / GROUPS) ** 0.5


@pytest.mark.parametrize("mixup, cutmix", [(0.8, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("switch", [0.0, 1.0])
def test_one_of_them_alone_is_always_chosen(mixup: float, cutmix: float, switch: float):
    draws = many(Mix(mixup, cutmix, switch, 2))
    if mixup:
        assert (draws.box == 0).all()
        assert torch.equal(draws.blend, draws.target)
    else:
        assert (draws.blend == 1).all()
        assert (draws.target < 1).double().mean() > 0.9


def distance(values: NDArray[np.float64], alpha: float) -> float:
    """Kolmogorov and Smirnov's, from Beta(alpha, alpha); at 1 float32 puts what is just below."""
    places = np.linspace(0.001, 0.999, 999)
    shares = np.searchsorted(np.sort(values), places) / len(values)
    return float(np.abs(shares - stats.beta(alpha, alpha).cdf(places)).max())


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0, 2.0])
def test_lambda_of_mixup_is_distributed_as_beta(alpha: float):
    own = many(Mix(alpha, 0.0, 0.5, 2)).blend.double().numpy()
    expected = stats.beta(alpha, alpha)
    deviation = float(expected.std())
    assert abs(own.mean() - 0.5) <= 3 * deviation / GROUPS**0.5
    kurtosis = 3 - 6 / (2 * alpha + 3)
    error = deviation**2 * ((kurtosis - 1) / GROUPS) ** 0.5
    assert abs(own.var() - deviation**2) <= 3 * error
    assert distance(own, alpha) <= KS_BOUND / GROUPS**0.5


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_lambda_of_both_is_each_ones_own(alpha: float):
    """What chooses between them does not choose lambda."""
    draws = many(Mix(alpha, 1.0, 0.5, 2))
    own = draws.blend[draws.blend < 1].double().numpy()
    assert distance(own, alpha) <= KS_BOUND / len(own) ** 0.5


def boxes_of_the_paper(alpha: float, size: int) -> NDArray[np.int64]:
    """arXiv:1905.04899's `rand_bbox`, as timm had it when DeiT III was trained; later timm gives
    a box of an odd side its last row and column."""
    generator = np.random.default_rng(0)
    cut = (size * np.sqrt(1 - generator.beta(alpha, alpha, size=GROUPS))).astype(np.int64)
    y, x = generator.integers(size, size=(2, GROUPS))
    edges = [y - cut // 2, y + cut // 2, x - cut // 2, x + cut // 2]
    return np.stack(edges, axis=1).clip(0, size)


def areas(boxes: NDArray[np.int64]) -> NDArray[np.int64]:
    return (boxes[:, 1] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 2])


@pytest.mark.parametrize("alpha, size", [(0.5, 224), (1.0, 32), (1.0, 224)])
def test_boxes_of_cutmix_are_distributed_as_the_papers(alpha: float, size: int):
    expected = boxes_of_the_paper(alpha, size)
    found = many(Mix(0.0, alpha, 0.5, 2), size).box.numpy()
    bound = KS_BOUND * (2 / GROUPS) ** 0.5
    pairs = [(areas(found), areas(expected)), *zip(found.T, expected.T, strict=True)]
    for ours, papers in pairs:
        found_distance: Any = stats.ks_2samp(ours, papers, method="asymp")
        assert found_distance.statistic <= bound


@pytest.mark.parametrize("size", [8, 15, 32, (16, 24), (24, 8)])
def test_cutmix_weighs_targets_by_the_area_really_replaced(size: ImageSize):
    mix = Mix(0.0, 1.0, 0.5, 2)
    draws = drawn(mix, size, 0, 0, (0, 4000))
    h, w = sides(size)
    images = torch.arange(4000).remainder(2).float()[:, None, None, None].expand(-1, 1, h, w)
    replaced = (mix_images(images, draws, 2) != images).sum(dim=(1, 2, 3)).double()
    assert len(replaced.unique()) > 10
    assert torch.equal(draws.target, (1 - replaced / (h * w)).float())
    assert draws.box.amax(dim=0).tolist()[1::2] == [h, w]


def literal(draws: MixDraws, values: Tensor, group: int, images: bool) -> Iterator[Tensor]:
    """Values mixed one by one."""
    for i, own in enumerate(values):
        first = i // group * group
        partner = values[first + group - 1 - (i - first)]
        weight = float((draws.blend if images else draws.target)[i])
        mixed = weight * own.double() + (1 - weight) * partner.double()
        if images:
            top, bottom, left, right = draws.box[i].tolist()
            mixed[:, top:bottom, left:right] = partner[:, top:bottom, left:right].double()
        yield mixed


@pytest.mark.parametrize("group", [2, 3, 4, 8, 24])
def test_inputs_equal_a_loop_over_the_images(group: int):
    mixing = task(replace(BOTH, group=group))
    given = [batch(mixing, number, (0, 48)) for number in range(4)]
    draws = [some.mix for some in given if some.mix is not None]
    assert any((each.blend == 1).any() for each in draws)
    assert any((each.blend < 1).any() for each in draws)
    for some, mix in zip(given, draws, strict=True):
        images, (own, targets, *_), *_ = Prepare(mixing.recipe)(some)
        assert torch.equal(own, some.targets)
        assert images.dtype == targets.dtype == torch.float32
        mean, std = (torch.tensor(v).double().view(1, 3, 1, 1) for v in (DATA.mean, DATA.std))
        pixels = (some.images.double() / 255 - mean) / std
        classes = torch.eye(10)[some.targets]
        for found, values in ((images, pixels), (targets, classes)):
            expected = torch.stack(list(literal(mix, values, group, values is pixels)))
            torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(targets.sum(dim=1), torch.ones(48), rtol=0, atol=1e-6)
        assert (targets >= 0).all()


def test_what_is_sharded_neither_normalises_nor_mixes():
    mixing = task()
    mixing.init_weights()
    data = replace(DATA, mix=None, mean=(0.1, 0.1, 0.1), std=(1.0, 1.0, 1.0))
    other = Task(replace(mixing.recipe, data=data))
    other.init_weights()
    inputs, unmixed = (Prepare(each.recipe)(batch(mixing, 7, (0, 48))) for each in (mixing, other))
    assert not torch.equal(inputs.targets.dense, unmixed.targets.dense)
    assert mixing(inputs) == other(inputs) != other(unmixed)


def quarter(count: int) -> MixDraws:
    """A mixup of three quarters of the partner."""
    weight = torch.full((count,), 0.25)
    return MixDraws(weight, torch.zeros(count, 4, dtype=torch.int64), weight)


@pytest.mark.parametrize("group", [2, 3, 4, 6, 12])
def test_the_partner_is_as_far_from_the_end_of_the_group(group: int):
    """Which also means that no group mixes across its border."""
    images = (4.0 ** torch.arange(12)).view(12, 1, 1, 1)  # every sum tells its parts
    partners = [i // group * group + group - 1 - i % group for i in range(12)]
    expected = torch.tensor([0.25 * 4.0**i + 0.75 * 4.0 ** partners[i] for i in range(12)])
    assert torch.equal(mix_images(images, quarter(12), group).flatten(), expected)
    targets = mix_targets(torch.eye(12), quarter(12), group)
    assert torch.equal(targets, 0.25 * torch.eye(12) + 0.75 * torch.eye(12)[partners])


@pytest.mark.parametrize("images", [100, 1000])
@pytest.mark.parametrize("group", [2, 3, 4, 8])
def test_copies_of_an_image_are_never_mixed(images: int, group: int):
    for size in range(3 * group, images // 2 + 1, group):
        sampler = Sampler(images, 3, size, 0)
        for number in range(min(2 * sampler.batches_per_epoch, 30)):
            _, _, ids = sampler.batch(number)
            groups = np.sort(ids.reshape(-1, group), axis=1)
            assert (groups[:, 1:] != groups[:, :-1]).all(), (size, number)


@pytest.mark.parametrize("mix", [NONE, None])
def test_without_either_nothing_is_mixed(mix: Mix | None):
    plain = task(mix)
    for number in range(3):
        some = batch(plain, number, (0, 48))
        images, (_, targets, *_), *_ = Prepare(plain.recipe)(some)
        mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (DATA.mean, DATA.std))
        assert torch.equal(images, (some.images.float() / 255 - mean) / std)
        assert torch.equal(targets, torch.eye(10)[some.targets])


def test_an_image_left_as_it_is_stays_so_beside_any_partner():
    """Outside the box CutMix's own pixels are not touched by rounding."""
    mixing = task(Mix(0.0, 1.0, 0.5, 4))
    images = prepared(mixing, 0, (0, 48)).images
    plain = prepared(task(None), 0, (0, 48)).images
    partners = plain.unflatten(0, (-1, 4)).flip(1).flatten(0, 1)
    assert ((images == plain) | (images == partners)).all()
