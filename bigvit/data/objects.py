"""Objects of a micro-batch's images: boxes, classes and masks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Objects(NamedTuple):
    """Objects of a micro-batch, image by image. Shapes: O objects of all its images, P bytes."""

    of: Tensor  # (O,) int64: in which image of the micro-batch each is, ascending
    boxes: Tensor  # (O, 4) float32: left, top, right, bottom, pixels of the image as it is seen
    classes: Tensor  # (O,) int64
    frames: Tensor  # (O, 4) int64: left, top, width, height of what `bits` say, whole pixels
    starts: Tensor  # (O,) int64: the first of its bytes
    bits: Tensor  # (P,) uint8: each mask within its frame, row by row, eight pixels a byte


class OwnObjects(NamedTuple):
    """Those of one image, as `Objects` has them."""

    boxes: NDArray[np.float32]  # (o, 4)
    classes: NDArray[np.int64]  # (o,)
    frames: NDArray[np.int64]  # (o, 4)
    bits: list[NDArray[np.uint8]]  # of each


NONE = OwnObjects(
    np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros((0, 4), np.int64), []
)
"""Those of an image without any."""


def joined(images: Sequence[OwnObjects]) -> Objects:
    """The objects of images, one after the other."""
    counts = [len(each.classes) for each in images]
    bits = [each for image in images for each in image.bits]
    sizes = np.array([0, *(len(each) for each in bits)], np.int64)
    parts = (
        np.repeat(np.arange(len(images)), counts),
        np.concatenate([each.boxes for each in images]).reshape(-1, 4).astype(np.float32),
        np.concatenate([each.classes for each in images]).astype(np.int64),
        np.concatenate([each.frames for each in images]).reshape(-1, 4).astype(np.int64),
        sizes.cumsum()[:-1],
        np.concatenate([*bits, np.zeros(0, np.uint8)]),
    )
    return Objects(*map(torch.from_numpy, parts))
