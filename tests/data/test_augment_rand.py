"""RandAugment and random erasing, beside timm's."""

import math
import random as python_random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images
from timm.data import auto_augment, random_erasing

from bigvit import keyed_random
from bigvit.data.augment import Drawn, apply, erasing, rand_augment
from bigvit.data.augment.erasing import Erased
from bigvit.data.augment.rand_augment import Operation, Operations
from bigvit.recipe import Images, RandAugment, RandomResizedCrop

PHOTOGRAPHS = [Image.fromarray(pixels) for pixels in load_sample_images().images]
M9 = RandAugment(operations=2, magnitude=9.0, magnitude_std=0.5, increasing=True)
FILL = (124, 116, 104)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DRAWS = 6_000
KS = 1.95  # sqrt(n) D exceeds it once in a thousand where the distributions are the same


def images(size: int, erase: float, augment: RandAugment | None = None) -> Images:
    return Images(
        dataset="photographs",
        train_images=2,
        test_images=None,
        classes=2,
        image_size=size,
        crop=RandomResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic"),
        flip=0.5,
        augment=augment,
        erasing=erase,
        repeats=1,
        mix=None,
        mean=MEAN,
        std=STD,
        test_crop_ratio=1.0,
        decode="exact",
        held_out=0.0,
        views=(),
        level="own",
    )


def draws(augment: RandAugment, count: int) -> Iterator[Operation]:
    for key in range(count):
        if drawn := rand_augment.draw(augment, FILL, "bicubic", key):
            yield from drawn.operations


class Scripted:
    """Stands for timm's generator: gives what the test lays down."""

    def __init__(self) -> None:
        self.uniforms: list[float] = []
        self.normal = 0.0

    def random(self) -> float:
        return self.uniforms.pop(0)

    def gauss(self, mean: float, std: float) -> float:
        return mean + std * self.normal


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    generator = Scripted()
    monkeypatch.setattr(auto_augment, "random", generator)
    return generator


@pytest.mark.parametrize("increasing", [False, True])
def test_operations_and_arguments_are_timms(increasing: bool, scripted: Scripted) -> None:
    theirs = auto_augment.rand_augment_choices("", increasing)
    suffixed = rand_augment.INCREASING if increasing else set()
    ours = [name + "Increasing" * (name in suffixed) for name in rand_augment.OPERATIONS]
    assert ours == theirs
    for name in ours:
        level_to_argument = auto_augment.LEVEL_TO_ARG[name]
        for level in (0.0, 0.3, 1.0, 4.99, 5.0, 8.7, 9.0, 9.99, 10.0):
            for negate in (False, True):
                scripted.uniforms = [0.75 if negate else 0.25]
                expected = level_to_argument(level, {})[0] if level_to_argument else None
                found = rand_augment.argument(name, level, negate)
                assert found == expected and type(found) is type(expected), (name, level)


@pytest.mark.parametrize(
    ("text", "augment"),
    [
        ("rand-m9-mstd0.5-inc1", M9),
        ("rand-m6-n3-mstd2.0", RandAugment(3, 6.0, 2.0, False)),
        ("rand-m7-n1-mstd0-inc1", RandAugment(1, 7.0, 0.0, True)),
    ],
)
def test_every_pixel_is_timms_given_the_same_draws(
    text: str, augment: RandAugment, scripted: Scripted
) -> None:
    hparams = {"img_mean": FILL, "interpolation": Image.Resampling.BICUBIC}
    theirs = auto_augment.rand_augment_transform(text, hparams)
    assert theirs.num_layers == augment.operations
    seen: set[str] = set()
    for key in range(150):
        image = PHOTOGRAPHS[key % 2].crop((key, key, key + 91, key + 60))
        drawn = rand_augment.draw(augment, FILL, "bicubic", key)
        expected = image
        uniforms = (
            keyed_random.uniform(4 * augment.operations, "augment", key).reshape(-1, 4).tolist()
        )
        for which, whether, strength, sign in uniforms:
            # timm: skipped above the probability, turned round above one half
            scripted.uniforms, scripted.normal = [whether, 1 - sign], NormalDist().inv_cdf(strength)
            expected = theirs.ops[int(which * len(theirs.ops))](expected)
        result = apply(image, Drawn(None, False, drawn, None))
        assert np.array_equal(result, np.asarray(expected).transpose(2, 0, 1)), drawn
        seen |= {name for name, _ in drawn.operations} if drawn else set()
    assert len(seen) == 15


def test_operations_are_uniform_and_half_of_them_applied() -> None:
    found = Counter(operation.name for operation in draws(M9, DRAWS))
    share = 1 / 30  # of the 2 x 6,000 places
    error = math.sqrt(2 * DRAWS * share * (1 - share))
    assert len(found) == 15
    assert all(abs(n - 2 * DRAWS * share) < 3 * error for n in found.values()), found
    assert abs(found.total() - DRAWS) < 3 * math.sqrt(2 * DRAWS / 4)
    nothing = sum(rand_augment.draw(M9, FILL, "bicubic", key) is None for key in range(4_000))
    assert abs(nothing - 1_000) < 3 * math.sqrt(4_000 * 3 / 16)


def degrees(augment: RandAugment, count: int) -> NDArray[np.float64]:
    return np.array([a for name, a in draws(augment, count) if name == "Rotate"], dtype=np.float64)


def test_strengths_are_normal_about_the_magnitude_and_clipped_to_ten() -> None:
    turned = degrees(RandAugment(16, 5.0, 0.5, True), 4_000)
    levels, n = np.abs(turned) / 3, len(turned)
    assert abs(levels.mean() - 5) < 3 * 0.5 / math.sqrt(n)
    assert abs(levels.std() - 0.5) < 3 * 0.5 / math.sqrt(2 * n)
    cumulated = np.array([NormalDist(5, 0.5).cdf(level) for level in np.sort(levels)])
    assert np.abs(cumulated - np.arange(n) / n).max() * math.sqrt(n) < KS
    assert abs((turned > 0).mean() - 0.5) < 3 * 0.5 / math.sqrt(n)

    levels = np.abs(degrees(RandAugment(16, 9.0, 0.5, True), 4_000)) / 3
    clipped = NormalDist().cdf(-2)
    assert levels.max() == 10
    assert abs((levels == 10).mean() - clipped) < 3 * math.sqrt(clipped / len(levels))
    assert (np.abs(degrees(RandAugment(16, 0.0, 3.0, True), 200)) / 3).min() == 0
    assert set(np.abs(degrees(RandAugment(16, 7.0, 0.0, True), 200)).round(9)) == {21.0}


def test_borders_get_the_mean_colour_by_the_crops_resampling() -> None:
    from bigvit.data.augment import draw

    found = [draw(images(32, 0.0, M9), 0, 0, slot, (64, 64)).augment for slot in range(30)]
    operations = [each for each in found if isinstance(each, Operations)]
    assert {(each.fill, each.interpolation) for each in operations} == {(FILL, "bicubic")}
    moved = Operations((Operation("TranslateXRel", 0.45),), FILL, "bicubic")
    result = apply(PHOTOGRAPHS[0].crop((0, 0, 40, 40)), Drawn(None, False, moved, None))
    assert (result[:, :, 23:] == np.array(FILL)[:, None, None]).all()


# --- random erasing -----------------------------------------------------------------------------


def erased(side: int, probability: float, count: int) -> list[Erased]:
    found = [erasing.draw(images(side, probability), key) for key in range(count)]
    return [each for each in found if each]


def test_erasing_happens_as_often_as_the_recipe_says() -> None:
    assert erased(126, 0.0, 50) == []
    assert len(erased(126, 1.0, 500)) == 500
    assert abs(len(erased(126, 0.25, 4_000)) - 1_000) < 3 * math.sqrt(4_000 * 3 / 16)


def test_boxes_stay_within_bounds_and_are_distributed_as_timms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    side, count = 64, 4_000
    monkeypatch.setattr(random_erasing, "random", python_random.Random(0))
    theirs = random_erasing.RandomErasing(1.0, mode="const", device="cpu")
    boxes: list[tuple[int, ...]] = []
    for _ in range(count):
        rows, columns = torch.nonzero(theirs(torch.ones(1, side, side))[0] == 0).T
        top, left = int(rows.min()), int(columns.min())
        boxes.append((left, top, int(columns.max()) - left + 1, int(rows.max()) - top + 1))
    their = np.array(boxes, dtype=np.float64).T
    ours = np.array([each[:4] for each in erased(side, 1.0, count)], dtype=np.float64).T
    left, top, w, h = ours
    assert ours.shape == their.shape == (4, count)
    assert min(left.min(), top.min()) >= 0 and max((left + w).max(), (top + h).max()) <= side
    # rounded to pixels, a side is off by up to one half
    assert ((w + 0.5) * (h + 0.5) >= 0.02 * side**2).all()
    assert ((w - 0.5) * (h - 0.5) <= side**2 / 3).all()
    assert ((h + 0.5) / (w - 0.5) >= 0.3).all() and ((h - 0.5) / (w + 0.5) <= 1 / 0.3).all()
    for mine, other in (
        (w * h, their[2] * their[3]),
        (h / w, their[3] / their[2]),
        (left, their[0]),
    ):
        every = np.concatenate([mine, other])
        below = [np.searchsorted(np.sort(each), every, "right") / count for each in (mine, other)]
        assert np.abs(below[0] - below[1]).max() * math.sqrt(count / 2) < KS


def test_of_an_image_that_is_not_square_a_box_reaches_both_far_sides() -> None:
    data = replace(images(64, 1.0), image_size=(32, 64))
    found = [each for key in range(1_000) if (each := erasing.draw(data, key))]
    assert max(each.top + each.height for each in found) == 32
    assert max(each.left + each.width for each in found) == 64
    shares = [each.width * each.height / (32 * 64) for each in found]
    assert 0.018 < min(shares) < 0.03 and 0.3 < max(shares) < 0.35


def test_the_box_is_filled_with_normal_noise_in_normalised_space() -> None:
    image = np.full((3, 224, 224), 7, dtype=np.uint8)
    box = Erased(20, 30, 150, 120, 99, MEAN, STD)
    box.apply(image)
    outside = image.copy()
    inside = outside[:, 30:150, 20:170]
    raw = keyed_random.bits(3 * 150 * 120 // 4, "noise", 99)
    steps = np.array([int(word) >> shift & 0xFFFF for word in raw for shift in (0, 16, 32, 48)])
    for channel, values in enumerate(steps.reshape(3, -1)):
        mean, std = MEAN[channel], STD[channel]
        for place in range(0, len(values), 997):
            normal = NormalDist().inv_cdf((int(values[place]) + 0.5) / 65536)
            expected = round(255 * min(max(normal * std + mean, 0), 1))
            assert inside[channel].flat[place] == expected
        # beside the distribution itself: the probability of every pixel value up to each one
        edges = (np.arange(255) + 0.5) / 255
        expected = np.array([NormalDist(mean, std).cdf(edge) for edge in edges])
        counted = np.cumsum(np.bincount(inside[channel].ravel(), minlength=256))[:255]
        n = inside[channel].size
        assert np.abs(counted / n - expected).max() * math.sqrt(n) < KS
        # adjacent values, and channels, are not related
        noise = inside[channel].astype(float)
        for other in (noise[:, 1:], inside[channel - 1, :, :-1].astype(float)):
            found = np.corrcoef(noise[:, :-1].ravel(), other.ravel())[0, 1]
            assert abs(found) < 3 / math.sqrt(n)
    inside[:] = 7
    assert (outside == 7).all()


def test_noise_is_a_function_of_its_key() -> None:
    boxes = erased(32, 1.0, 20)
    assert len({box.noise for box in boxes}) == 20
    image = PHOTOGRAPHS[0].crop((0, 0, 32, 32))
    first = apply(image, Drawn(None, False, None, boxes[0]))
    assert np.array_equal(first, apply(image, Drawn(None, False, None, boxes[0])))
    again = boxes[0]._replace(noise=boxes[1].noise)
    assert not np.array_equal(first, apply(image, Drawn(None, False, None, again)))
