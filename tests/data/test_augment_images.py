"""Crops, flips, 3-Augment and jitter: their distributions, and every pixel beside plain PIL."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from sklearn.datasets import load_sample_images
from torchvision import transforms
from torchvision.transforms import functional as F

from bigvit.data.augment import Drawn, apply, crop, draw, three_augment
from bigvit.data.augment.crop import ResizedCrop, SimpleCrop
from bigvit.data.augment.three_augment import Jitter, Three
from bigvit.recipe import Images, RandomResizedCrop, SimpleRandomCrop, ThreeAugment, sides

# 640 x 427; torchvision says Tensor where it takes PIL's images too, hence Any
PHOTOGRAPHS: list[Any] = [Image.fromarray(pixels) for pixels in load_sample_images().images]
RESIZED = RandomResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic")
SIMPLE = SimpleRandomCrop(padding=4, interpolation="bicubic")
IMAGES = Images(
    dataset="photographs",
    train_images=2,
    test_images=None,
    classes=2,
    image_size=126,
    crop=RESIZED,
    flip=0.5,
    augment=ThreeAugment(color_jitter=0.3),
    erasing=0.0,
    repeats=1,
    mix=None,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    test_crop_ratio=1.0,
    decode="exact",
    held_out=0.0,
    views=(),
    level="own",
)
SIDES = [(475, 431), (427, 427), (301, 199), (97, 413), (411, 63), (13, 400), (600, 5), (31, 30)]
DRAWS = 20_000
KS = 1.95  # sqrt(n) D exceeds it once in a thousand where the distributions are the same


def photograph(number: int) -> Any:
    """A part of one of the two photographs; sizes odd, some very narrow."""
    width, height = SIDES[number % len(SIDES)]
    left, top = 7 * number % (640 - width), 5 * number % (427 - height + 1) if height < 427 else 0
    return PHOTOGRAPHS[number % 3 % 2].crop((left, top, left + width, top + height))


def array(image: Image.Image) -> NDArray[np.uint8]:
    return np.array(image).transpose(2, 0, 1)


def shares(found: Iterable[object]) -> dict[object, float]:
    counts = Counter(found)
    return {what: count / counts.total() for what, count in counts.items()}


def distance(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
    """The two-sample Kolmogorov-Smirnov statistic, times the root of the effective size."""
    every = np.concatenate([ours, theirs])
    below = [
        np.searchsorted(np.sort(sample), every, "right") / len(sample) for sample in (ours, theirs)
    ]
    size = len(ours) * len(theirs) / (len(ours) + len(theirs))
    return float(np.abs(below[0] - below[1]).max() * math.sqrt(size))


def distance_from_uniform(sample: NDArray[np.float64]) -> float:
    ordered, n = np.sort(sample), len(sample)
    above, below = np.arange(1, n + 1) / n - ordered, ordered - np.arange(n) / n
    return float(max(above.max(), below.max()) * math.sqrt(n))


# --- the reference: what the paper says, in plain PIL -------------------------------------------


def reference_crop(image: Image.Image, drawn: ResizedCrop | SimpleCrop) -> Image.Image:
    down, across = sides(drawn.size)
    if isinstance(drawn, ResizedCrop):
        box = (drawn.left, drawn.top, drawn.left + drawn.width, drawn.top + drawn.height)
        return image.crop(box).resize((across, down), Image.Resampling.BICUBIC)
    width, height = image.size
    if width / across <= height / down:
        covering = across, int(across * height / width)
    else:
        covering = int(down * width / height), down
    resized = np.asarray(image.resize(covering, Image.Resampling.BICUBIC))
    border = drawn.padding
    padded = np.pad(resized, ((border, border), (border, border), (0, 0)), mode="reflect")
    box = (drawn.left, drawn.top, drawn.left + across, drawn.top + down)
    return Image.fromarray(padded).crop(box)


def reference_three(image: Image.Image, drawn: Three) -> Image.Image:
    if drawn.choice == "grayscale":
        gray = ImageOps.grayscale(image)
        image = Image.merge("RGB", (gray, gray, gray))
    elif drawn.choice == "solarize":
        pixels = np.asarray(image)
        image = Image.fromarray(np.where(pixels < 128, pixels, 255 - pixels))
    else:
        assert drawn.radius is not None
        image = image.filter(ImageFilter.GaussianBlur(radius=drawn.radius))
    for what, factor in drawn.jitter:
        if what == "brightness":
            image = ImageEnhance.Brightness(image).enhance(factor)
        elif what == "contrast":
            image = ImageEnhance.Contrast(image).enhance(factor)
        else:
            image = ImageEnhance.Color(image).enhance(factor)
    return image


@pytest.mark.parametrize("kind", [RESIZED, SIMPLE])
def test_every_pixel_is_that_of_plain_pil(kind: RandomResizedCrop | SimpleRandomCrop) -> None:
    choices = set()
    for key in range(200):
        image = photograph(key)
        size = 33 if min(image.size) < 40 else (126, 64, (64, 96), (96, 64))[key % 4]
        data = replace(IMAGES, crop=kind, image_size=size)
        drawn = draw(data, 0, key % 7, key, image.size)
        assert isinstance(drawn.crop, ResizedCrop | SimpleCrop)
        assert isinstance(drawn.augment, Three)
        expected = reference_crop(image, drawn.crop)
        if drawn.flip:
            expected = ImageOps.mirror(expected)
        expected = reference_three(expected, drawn.augment)
        assert expected.size == sides(size)[::-1]
        assert np.array_equal(apply(image, drawn), array(expected)), (key, drawn)
        choices.add((drawn.flip, drawn.augment.choice))
    assert len(choices) == 6


def test_crops_are_torchvisions_given_the_same_box() -> None:
    bicubic = transforms.InterpolationMode.BICUBIC
    for key in range(64):
        image, size = photograph(key), (50, 33)[key % 2]
        box = crop.draw(RESIZED, size, image.size, key)
        assert isinstance(box, ResizedCrop)
        left, top, width, height, *_ = box
        theirs = F.resized_crop(image, top, left, height, width, [size, size], bicubic)
        assert np.array_equal(apply(image, Drawn(box, False, None, None)), F.pil_to_tensor(theirs))
        square = crop.draw(SIMPLE, size, image.size, key)
        assert isinstance(square, SimpleCrop)
        resized: Any = F.resize(image, [size], bicubic)
        assert resized.size == (square.width, square.height)
        padded = F.pad(resized, [4], padding_mode="reflect")
        theirs = F.crop(padded, square.top, square.left, size, size)
        result = apply(image, Drawn(square, False, None, None))
        assert np.array_equal(result, F.pil_to_tensor(theirs))


def test_bilinear_crops_are_resampled_so() -> None:
    image = photograph(0)
    box = crop.draw(replace(RESIZED, interpolation="bilinear"), 50, image.size, 0)
    assert isinstance(box, ResizedCrop)
    left, top, width, height, *_ = box
    bilinear = transforms.InterpolationMode.BILINEAR
    theirs = F.resized_crop(image, top, left, height, width, [50, 50], bilinear)
    assert np.array_equal(apply(image, Drawn(box, False, None, None)), F.pil_to_tensor(theirs))


def test_three_augment_and_jitter_are_torchvisions_given_the_same_values() -> None:
    adjust = {
        "brightness": F.adjust_brightness,
        "contrast": F.adjust_contrast,
        "saturation": F.adjust_saturation,
    }
    for key in range(60):
        image = photograph(key)
        drawn = three_augment.draw(ThreeAugment((0.3, 1.0)[key % 2]), key)
        if drawn.choice == "grayscale":
            theirs = transforms.Grayscale(3)(image)
        elif drawn.choice == "solarize":
            theirs = ImageOps.solarize(image)
        else:
            assert drawn.radius is not None
            theirs = image.filter(ImageFilter.GaussianBlur(radius=drawn.radius))
        for what, factor in drawn.jitter:
            theirs = adjust[what](theirs, factor)
        assert np.array_equal(
            apply(image, Drawn(None, False, drawn, None)), F.pil_to_tensor(theirs)
        )


# --- what is drawn ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn() -> list[Drawn]:
    """20,000 draws for an image of 475 x 431."""
    return [draw(IMAGES, 0, slot // 5_000, slot % 5_000, (475, 431)) for slot in range(DRAWS)]


def test_half_are_flipped_and_every_operation_is_chosen_a_third_of_the_time(
    drawn: list[Drawn],
) -> None:
    def close(share: float, expected: float) -> bool:
        return abs(share - expected) < 3 * math.sqrt(expected * (1 - expected) / DRAWS)

    flips, choices = (
        shares(each.flip for each in drawn),
        shares(three(each).choice for each in drawn),
    )
    both = shares((each.flip, three(each).choice) for each in drawn)
    assert set(choices) == {"grayscale", "solarize", "blur"} and len(both) == 6
    assert close(flips[True], 1 / 2)
    assert all(close(share, 1 / 3) for share in choices.values()), choices
    assert all(close(share, 1 / 6) for share in both.values()), both


def test_steps_are_drawn_independently_of_each_other(drawn: list[Drawn]) -> None:
    facts = [
        [each.flip, three(each).choice == "blur", three(each).jitter[0][1], each.crop.width]
        for each in drawn
        if isinstance(each.crop, ResizedCrop)
    ]
    correlation = np.corrcoef(np.array(facts, dtype=float).T)
    assert np.abs(correlation - np.eye(4)).max() < 3 / math.sqrt(DRAWS)


def three(each: Drawn) -> Three:
    assert isinstance(each.augment, Three)
    return each.augment


def test_the_probability_of_a_flip_is_the_recipes() -> None:
    for flip in (0.0, 0.1, 1.0):
        data = replace(IMAGES, augment=None, flip=flip)
        share = sum(draw(data, 0, 0, slot, (64, 64)).flip for slot in range(500)) / 500
        assert abs(share - flip) <= 3 * math.sqrt(flip * (1 - flip) / 500)


def test_a_blurs_radius_is_uniform(drawn: list[Drawn]) -> None:
    radii = np.array([r for each in drawn if (r := three(each).radius) is not None])
    assert len(radii) == sum(three(each).choice == "blur" for each in drawn)
    assert distance_from_uniform((radii - 0.1) / 1.9) < KS


def test_jitters_factors_are_uniform_and_their_order_is_too(drawn: list[Drawn]) -> None:
    names = ("brightness", "contrast", "saturation")
    orders = shares(tuple(what for what, _ in three(each).jitter) for each in drawn)
    assert set(orders) == set(permutations(names))
    assert all(abs(s - 1 / 6) < 3 * math.sqrt(5 / 36 / DRAWS) for s in orders.values()), orders
    factors = np.array([[dict(three(each).jitter)[name] for name in names] for each in drawn])
    for column in factors.T:
        assert distance_from_uniform((column - 0.7) / 0.6) < KS
    assert np.abs(np.corrcoef(factors.T) - np.eye(3)).max() < 3 / math.sqrt(DRAWS)


def test_no_jitter_is_none_and_a_factor_is_not_negative() -> None:
    assert three_augment.draw(ThreeAugment(0.0), 0).jitter == ()
    strong = [f for key in range(300) for _, f in three_augment.draw(ThreeAugment(1.5), key).jitter]
    assert 0 <= min(strong) < 0.05 and 2.4 < max(strong) <= 2.5
    one = Three("solarize", None, (Jitter("contrast", 1.0),))
    image = photograph(0)
    assert np.array_equal(
        apply(image, Drawn(None, False, one, None)), array(ImageOps.solarize(image, 128))
    )


def torchvisions_boxes(width: int, height: int, count: int) -> NDArray[np.float64]:
    image: Any = Image.new("L", (width, height))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = [
            transforms.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
            for _ in range(count)
        ]
    top, left, h, w = np.array(found, dtype=np.float64).T
    return np.stack([left, top, w, h])


@pytest.mark.parametrize(("width", "height", "count"), [(475, 431, DRAWS), (150, 413, 3_000)])
def test_boxes_are_distributed_as_torchvisions(
    drawn: list[Drawn], width: int, height: int, count: int
) -> None:
    boxes = [each.crop for each in drawn]
    if (width, height) != (475, 431):
        boxes = [crop.draw(RESIZED, 126, (width, height), slot) for slot in range(count)]
    ours = np.array([box[:4] for box in boxes if box], dtype=np.float64).T
    assert len(ours.T) == count
    left, top, w, h = ours
    assert left.min() >= 0 and top.min() >= 0 and min(w.min(), h.min()) > 0
    assert (left + w).max() <= width and (top + h).max() <= height
    their_left, their_top, their_w, their_h = torchvisions_boxes(width, height, count)
    for mine, their in (
        (w * h, their_w * their_h),
        (w / h, their_w / their_h),
        (left, their_left),
        (top, their_top),
        (left + w, their_left + their_w),
    ):
        assert distance(mine, their) < KS


@pytest.mark.parametrize("side", [(5, 600), (600, 5), (5, 1), (1, 90), (40, 3)])
def test_where_no_box_fits_it_is_torchvisions_central_one(side: tuple[int, int]) -> None:
    """A scale of exactly 1 fits no box into an image that is not within the ratios."""
    image: Any = Image.new("L", side)
    whole = replace(RESIZED, scale=(1.0, 1.0))
    fallbacks = transforms.RandomResizedCrop.get_params(image, [1.0, 1.0], [3 / 4, 4 / 3])
    box = crop.draw(whole, 32, side, 0)
    assert (box.top, box.left, box.height, box.width) == fallbacks


def test_a_simple_crop_reaches_every_place_equally_often() -> None:
    """40 x 30, resized to 21 x 16 and padded to 29 x 24: 14 x 9 places for a square of 16."""
    count = 6_300
    found = Counter(crop.draw(SIMPLE, 16, (40, 30), slot)[3:5] for slot in range(count))
    assert set(found) == {(left, top) for left in range(14) for top in range(9)}
    expected = count / 126
    chi_squared = sum((n - expected) ** 2 / expected for n in found.values())
    assert abs(chi_squared - 125) < 3 * math.sqrt(2 * 125)
