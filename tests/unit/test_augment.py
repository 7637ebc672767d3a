"""Shifts of an image: how they are drawn, and that they are applied as drawn."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from bigvit.data.augment import Moved, apply, draw
from bigvit.recipe import Digits, Shift
from bigvit.recipes.digits import digits_vit

assert isinstance(digits_vit.data, Digits)
PLAIN = digits_vit.data


def shifting(pixels: int) -> Digits:
    return replace(PLAIN, augment=Shift(pixels=pixels))


def moved_literally(image: NDArray[np.uint8], by: Moved) -> NDArray[np.uint8]:
    """Pixel by pixel: what is at (y, x) goes to (y + down, x + right), if that is inside."""
    channels, height, width = image.shape
    out = np.zeros_like(image)
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                if 0 <= y + by.down < height and 0 <= x + by.right < width:
                    out[c, y + by.down, x + by.right] = image[c, y, x]
    return out


def test_every_shift_is_drawn_equally_often() -> None:
    count = 20_000
    found = Counter(draw(shifting(1), 0, slot // 1497, slot % 1497) for slot in range(count))
    assert set(found) == {Moved(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)}
    share = 1 / 9
    error = (count * share * (1 - share)) ** 0.5
    assert all(abs(n - count * share) < 4 * error for n in found.values())


@pytest.mark.parametrize("pixels", [0, 1, 2, 7])
def test_a_shift_stays_in_its_range_and_reaches_its_ends(pixels: int) -> None:
    drawn = [draw(shifting(pixels), 0, 0, slot) for slot in range(500)]
    values = {value for each in drawn if each is not None for value in each}
    assert values == set(range(-pixels, pixels + 1))


def test_a_draw_depends_on_seed_epoch_and_slot_alone() -> None:
    data = shifting(7)
    here = [draw(data, 0, 0, slot) for slot in range(20)]
    assert here == [draw(data, 0, 0, slot) for slot in reversed(range(20))][::-1]
    assert here != [draw(data, 1, 0, slot) for slot in range(20)]
    assert here != [draw(data, 0, 1, slot) for slot in range(20)]


def test_a_draw_is_pinned() -> None:
    assert [draw(shifting(2), 0, 1, slot) for slot in range(4)] == [
        Moved(2, -1),
        Moved(-1, 1),
        Moved(1, 2),
        Moved(0, -2),
    ]


def test_nothing_is_drawn_without_augmentation() -> None:
    assert draw(PLAIN, 0, 0, 0) is None
    image = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)
    assert np.array_equal(apply(image, None), image)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 4)])
def test_a_shift_moves_every_pixel_and_fills_with_background(shape: tuple[int, ...]) -> None:
    image = np.arange(1, 1 + np.prod(shape), dtype=np.uint8).reshape(shape)
    kept = image.copy()
    for down in range(-3, 4):
        for right in range(-3, 4):
            by = Moved(down, right)
            result = apply(image, by)
            assert result.dtype == np.uint8
            assert np.array_equal(result, moved_literally(image, by))
    assert np.array_equal(image, kept)
