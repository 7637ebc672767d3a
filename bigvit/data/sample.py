"""An image as data processes hand it over, and the place that it was asked for."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigvit.data.augment.three_augment import Three
from bigvit.data.objects import OwnObjects


class TrainIndex(NamedTuple):
    """Which training image, and where it stands."""

    epoch: int
    slot: int
    id: int


class TestIndex(NamedTuple):
    """Which test image."""

    id: int
    real: bool  # false: it fills a batch, and is not counted


class Sample(NamedTuple):
    """An image as it goes into a batch. Shapes: C channels, H x W pixels, V views."""

    image: NDArray[np.uint8]  # (C, H, W)
    id: int
    slot: int
    valid: bool  # whether there is an image
    bad: tuple[int, ...]  # images that could not be read on the way to this one
    three: Three | None = None  # what is left to the device
    map: "Mapped | None" = None  # if labels are read from maps
    # further views, one after the other through all groups, each (C, h, w)
    views: Sequence[NDArray[np.uint8]] = ()
    size: tuple[int, int] | None = None  # height and width of what is no filling, in scenes
    labels: NDArray[np.uint8] | None = None  # (H, W): of its pixels, if they have some
    objects: OwnObjects | None = None  # in it, if they are known


class Mapped(NamedTuple):
    """An image's map of labels, and what is seen of it."""

    where: tuple[float, ...]  # as `SparseMaps` says it
    classes: NDArray[Any]  # (h, w, k)
    scores: NDArray[np.float16]  # (h, w, k)
