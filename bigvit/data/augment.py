"""Random variations of an image: first drawn from a key, then applied."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigvit import random
from bigvit.recipe import Data, Digits, Images, Shift


class Moved(NamedTuple):
    """Where an image moves to, pixels."""

    down: int
    right: int


def draw(data: Data, seed: int, epoch: int, slot: int) -> Moved | None:
    """The variation of the image at a slot of an epoch; None where there is none."""
    match data:
        case Digits(augment=Shift(pixels=pixels)):
            raw = random.bits(2, "augment", seed, epoch, slot) % np.uint64(2 * pixels + 1)
            return Moved(int(raw[0]) - pixels, int(raw[1]) - pixels)
        case Digits():
            return None
        case Images():
            raise AssertionError("check_data refuses it")


def apply(image: NDArray[np.uint8], drawn: Moved | None) -> NDArray[np.uint8]:
    """The varied image (C, H, W); what comes in at an edge is background, 0."""
    if drawn is None:
        return image
    _, height, width = image.shape
    moved = np.zeros_like(image)
    to_down, to_right = max(drawn.down, 0), max(drawn.right, 0)
    from_down, from_right = max(-drawn.down, 0), max(-drawn.right, 0)
    rows, columns = height - abs(drawn.down), width - abs(drawn.right)
    moved[:, to_down : to_down + rows, to_right : to_right + columns] = image[
        :, from_down : from_down + rows, from_right : from_right + columns
    ]
    return moved
