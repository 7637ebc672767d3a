"""How many data processes a rank has, and the memory that it shares with them. No torch here."""

import math
import os
from collections.abc import Sequence
from typing import Literal

from bigvit.ranks.launched import launched
from bigvit.recipe import Data, Detection, Segmentation, sides

MOST = 12  # data processes of a rank, unless it is told another number
PREFETCH = 4  # micro-batches that each makes ahead
NUMBERS = 3 * 8 + 1  # bytes of an image besides its pixels: three int64, one bool


def workers_for(workers: int | None) -> int:
    """Data processes of this rank: as asked, or what its share of the host's cores allows."""
    if workers is not None:
        return workers
    return usual(len(os.sched_getaffinity(0)), launched().here or 1)


def usual(cores: int, ranks: int) -> int:
    """Data processes of each of so many ranks on a host."""
    return max(0, min(MOST, cores // ranks - 1))


def slots(workers: int) -> int:
    """Micro-batches that there is room for: one more than torch asks for ahead, as it asks again
    before the rank has taken what it got."""
    return PREFETCH * workers + 1


def shape_of(data: Data) -> tuple[int, int, int]:
    """Of an image as it goes into a batch, (C, H, W)."""
    return (data.channels, *sides(data.image_size))


def scene_of(data: Data) -> Literal["labels", "objects"] | None:
    """What is known of an image besides one label."""
    match data:
        case Segmentation():
            return "labels"
        case Detection():
            return "objects"
        case _:
            return None


def view_shapes(data: Data) -> list[tuple[int, int, int, int]]:
    """Of each group of an image's further views, (V, C, h, w)."""
    return [(each.count, data.channels, *sides(each.image_size)) for each in data.groups]


def slot_bytes(
    shape: tuple[int, int, int], images: int, views: Sequence[tuple[int, int, int, int]] = ()
) -> int:
    """Of a micro-batch of so many images, and of their further views."""
    return images * (NUMBERS + sum(map(math.prod, (shape, *views))))


def image_bytes(data: Data) -> int:
    """Of an image with its further views and classes of pixels."""
    shape = shape_of(data)
    labels = math.prod(shape[1:]) if scene_of(data) == "labels" else 0
    return slot_bytes(shape, 1, view_shapes(data)) + labels
