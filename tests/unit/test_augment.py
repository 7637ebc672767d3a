"""What is drawn for an image and how it is applied: shifts of digits, and the whole of Images."""

import pickle
import random as python_random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images
from torchvision import transforms

from bigvit.data import augment
from bigvit.data.augment import Drawn, Moved, apply, crop, draw, erasing, three_augment
from bigvit.recipe import (
    Digits,
    Images,
    RandAugment,
    RandomResizedCrop,
    Shift,
    SimpleRandomCrop,
    ThreeAugment,
    sides,
)
from bigvit.recipes.digits import digits_vit

assert isinstance(digits_vit.data, Digits)
PLAIN = digits_vit.data
PHOTOGRAPHS: list[Any] = [Image.fromarray(pixels) for pixels in load_sample_images().images]
IMAGES = Images(
    dataset="photographs",
    train_images=2,
    test_images=None,
    classes=2,
    image_size=126,
    crop=RandomResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic"),
    flip=0.5,
    augment=ThreeAugment(color_jitter=0.3),
    erasing=0.25,
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
SIZE = (475, 431)


def shifting(pixels: int) -> Digits:
    return replace(PLAIN, augment=Shift(pixels=pixels))


def moved(pixels: int, seed: int, epoch: int, slot: int) -> Moved:
    drawn = draw(shifting(pixels), seed, epoch, slot, (8, 8))
    assert isinstance(drawn.crop, Moved)
    assert drawn == Drawn(drawn.crop, False, None, None)
    return drawn.crop


def moved_literally(image: NDArray[np.uint8], by: Moved) -> NDArray[np.uint8]:
    """Pixel by pixel: what is at (y, x) goes to (y + down, x + right), if that is inside."""
    height, width = image.shape
    out = np.zeros_like(image)
    for y in range(height):
        for x in range(width):
            if 0 <= y + by.down < height and 0 <= x + by.right < width:
                out[y + by.down, x + by.right] = image[y, x]
    return out


def test_every_shift_is_drawn_equally_often() -> None:
    count = 9_000
    found = Counter(moved(1, 0, slot // 1497, slot % 1497) for slot in range(count))
    assert set(found) == {Moved(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)}
    share = 1 / 9
    error = (count * share * (1 - share)) ** 0.5
    assert all(abs(n - count * share) < 4 * error for n in found.values())


@pytest.mark.parametrize("pixels", [0, 1, 2, 7])
def test_a_shift_stays_in_its_range_and_reaches_its_ends(pixels: int) -> None:
    values = {value for slot in range(500) for value in moved(pixels, 0, 0, slot)}
    assert values == set(range(-pixels, pixels + 1))


def test_a_shift_is_pinned() -> None:
    assert [moved(2, 0, 1, slot) for slot in range(4)] == [
        Moved(2, -1),
        Moved(-1, 1),
        Moved(1, 2),
        Moved(0, -2),
    ]


def test_nothing_is_drawn_without_augmentation() -> None:
    drawn = draw(PLAIN, 0, 0, 0, (8, 8))
    assert drawn == Drawn(None, False, None, None)
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    for result in (
        apply(Image.fromarray(pixels), drawn),
        augment.test_image(Image.fromarray(pixels), PLAIN),
    ):
        assert result.shape == (1, 8, 8) and np.array_equal(result[0], pixels)
        torch.from_numpy(result)  # would warn if it could not be written to


@pytest.mark.parametrize("shape", [(8, 8), (5, 4)])
def test_a_shift_moves_every_pixel_and_fills_with_background(shape: tuple[int, int]) -> None:
    pixels = np.arange(1, 1 + np.prod(shape), dtype=np.uint8).reshape(shape)
    image = Image.fromarray(pixels)
    for down in range(-3, 4):
        for right in range(-3, 4):
            by = Moved(down, right)
            result = apply(image, Drawn(by, False, None, None))
            assert result.dtype == np.uint8
            assert np.array_equal(result, moved_literally(pixels, by)[None])
    assert np.array_equal(np.asarray(image), pixels)


@pytest.mark.parametrize("data", [shifting(7), IMAGES])
def test_a_draw_depends_on_seed_epoch_and_slot_alone(data: Digits | Images) -> None:
    here = [draw(data, 0, 0, slot, SIZE) for slot in range(20)]
    assert here == [draw(data, 0, 0, slot, SIZE) for slot in reversed(range(20))][::-1]
    for other in ((1, 0), (0, 1)):
        there = [draw(data, *other, slot, SIZE) for slot in range(20)]
        assert sum(a == b for a, b in zip(here, there, strict=True)) <= 1
    assert pickle.loads(pickle.dumps(here)) == here


def test_what_is_drawn_for_one_step_does_not_depend_on_another() -> None:
    bare = replace(IMAGES, flip=0.0, augment=None, erasing=0.0)
    others = [
        replace(bare, flip=0.5),
        replace(bare, augment=IMAGES.augment),
        replace(bare, augment=RandAugment(2, 9.0, 0.5, True)),
        replace(bare, erasing=0.25),
    ]
    for slot in range(50):
        whole = draw(IMAGES, 0, 0, slot, SIZE)
        assert draw(bare, 0, 0, slot, SIZE) == Drawn(whole.crop, False, None, None)
        assert all(draw(data, 0, 0, slot, SIZE).crop == whole.crop for data in others)
        elsewhere = draw(IMAGES, 0, 0, slot, (300, 200))
        assert elsewhere == whole._replace(crop=elsewhere.crop) != whole


def test_a_draw_is_pinned() -> None:
    drawn = draw(replace(IMAGES, erasing=1.0), 0, 1, 2, SIZE)
    assert isinstance(drawn.crop, crop.ResizedCrop) and isinstance(drawn.erased, erasing.Erased)
    assert isinstance(drawn.augment, three_augment.Three)
    jitter = [(what, round(factor, 9)) for what, factor in drawn.augment.jitter]
    found = (drawn.crop[:4], drawn.flip, drawn.augment.choice, jitter, drawn.erased[:5])
    assert found == (
        (10, 136, 271, 295),
        False,
        "grayscale",
        [("contrast", 1.238958936), ("saturation", 1.281238308), ("brightness", 0.933079648)],
        (15, 51, 52, 66, 7837189032839273907),
    )


@pytest.mark.parametrize(
    "data",
    [
        IMAGES,
        replace(IMAGES, erasing=1.0),
        replace(IMAGES, augment=RandAugment(2, 9.0, 0.5, True), image_size=64),
        replace(IMAGES, crop=SimpleRandomCrop(4, "bilinear"), augment=None, image_size=32),
        replace(IMAGES, erasing=1.0, image_size=(32, 48)),
    ],
)
def test_an_image_becomes_an_array_of_its_own_and_no_global_generator_is_used(
    data: Images,
) -> None:
    before = (python_random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist())
    for slot in range(8):
        image = PHOTOGRAPHS[slot % 2]
        kept = image.copy()
        drawn = draw(data, 0, 0, slot, image.size)
        result = apply(image, drawn)
        assert result.shape == (3, *sides(data.image_size)) and result.dtype == np.uint8
        assert result.flags.c_contiguous
        torch.from_numpy(result)  # would warn if it could not be written to
        assert np.array_equal(result, apply(image, drawn))
        assert image == kept
    after = (python_random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist())
    assert before == after


@pytest.mark.parametrize(("size", "ratio"), [(126, 1.0), (224, 0.875), (224, 0.95), (33, 0.9)])
def test_a_test_image_is_torchvisions(size: int, ratio: float) -> None:
    data = replace(IMAGES, image_size=size, test_crop_ratio=ratio)
    theirs: Any = transforms.Compose(
        [
            transforms.Resize(int(size / ratio), transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(size),
            transforms.PILToTensor(),
        ]
    )
    given = [(475, 431), (431, 475), (224, 224), (126, 300), (127, 201), (500, 375), (333, 141)]
    given += [(90, 91), (301, 302), (256, 255), (1, 3), (128, 427)]
    for number, side in enumerate(given):
        image = PHOTOGRAPHS[number % 2].crop((5, 3, 5 + side[0], 3 + side[1]))
        assert image.size == side
        assert torch.equal(torch.from_numpy(augment.test_image(image, data)), theirs(image)), side


@pytest.mark.parametrize("ratio", [1.0, 0.875])
@pytest.mark.parametrize("size", [(64, 96), (96, 64), (32, 160)])
def test_a_test_image_that_is_not_square_is_the_centre_of_what_covers_it(
    size: tuple[int, int], ratio: float
) -> None:
    data = replace(IMAGES, image_size=size, test_crop_ratio=ratio)
    for number, side in enumerate([(475, 431), (431, 475), (224, 224), (127, 201), (600, 70)]):
        image = PHOTOGRAPHS[number % 2].resize(side)
        down, across = (int(each / ratio) for each in size)
        enlarged = max(across / side[0], down / side[1])
        covering = [int(side[1] * enlarged + 1e-6), int(side[0] * enlarged + 1e-6)]
        theirs: Any = transforms.Compose(
            [
                transforms.Resize(covering, transforms.InterpolationMode.BICUBIC),
                transforms.CenterCrop(size),
                transforms.PILToTensor(),
            ]
        )
        assert torch.equal(torch.from_numpy(augment.test_image(image, data)), theirs(image)), side
