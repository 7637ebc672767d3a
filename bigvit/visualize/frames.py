"""Frames and masks of objects upon an image."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bigvit.data.objects import Objects

OPACITY = 0.45  # of a mask upon an image
FRAME = 1  # width of a frame, pixels
Box = tuple[float, float, float, float]


class Drawn(NamedTuple):
    """An object as it is drawn."""

    box: Box  # left, top, right, bottom, pixels
    of: int  # class
    mask: NDArray[np.bool_]  # (H, W)
    text: str


def framed(
    pixels: Tensor, objects: Sequence[Drawn], colour: Callable[[int], tuple[float, float, float]]
) -> Tensor:
    """An image (3, H, W) with objects upon it, in the colours of their classes."""
    image = pixels.permute(1, 2, 0).numpy().astype(np.float64)
    height, width = image.shape[:2]
    for each in objects:
        of = 255 * np.array(colour(each.of))
        image[each.mask] += OPACITY * (of - image[each.mask])
        left, top, right, bottom = (round(side) for side in each.box)
        left, right = (min(max(0, x), width - 1) for x in (left, right))
        top, bottom = (min(max(0, y), height - 1) for y in (top, bottom))
        for rows, columns in (
            (slice(top, top + FRAME), slice(left, right + 1)),
            (slice(bottom, bottom + FRAME), slice(left, right + 1)),
            (slice(top, bottom + 1), slice(left, left + FRAME)),
            (slice(top, bottom + 1), slice(right, right + FRAME)),
        ):
            image[rows, columns] = of
    return torch.from_numpy(image.round().astype(np.uint8)).permute(2, 0, 1)


def of_image(
    objects: Objects, image: int, size: Sequence[int], names: Sequence[str]
) -> list[Drawn]:
    """The objects of an image of a training batch, whose pixels are (H, W)."""
    drawn = list[Drawn]()
    for i in (objects.of == image).nonzero()[:, 0].tolist():
        left, top, width, height = objects.frames[i].tolist()
        bits = objects.bits[int(objects.starts[i]) :].numpy()
        mask = np.zeros(tuple(size), np.bool_)
        own = np.unpackbits(bits, count=width * height).reshape(height, width)
        mask[top : top + height, left : left + width] = own
        of = int(objects.classes[i])
        drawn.append(Drawn(cast(Box, tuple(objects.boxes[i].tolist())), of, mask, names[of]))
    return drawn
