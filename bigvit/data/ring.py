"""Memory that a rank shares with its data processes, which write micro-batches into it.

It is mapped once, before they are started, and cut into slots that are used again and again: its
size is fixed, a micro-batch needs no open file, and /dev/shm is not used.

Shapes: B images in a micro-batch, C channels, H x W pixels, V views of h x w, D numbers drawn for
each image, maps of labels of h x w cells with the k best classes of each.
"""

import math
import mmap
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bigvit.data.batch import Batch
from bigvit.data.decode import Unread
from bigvit.data.label_maps.cropping import SparseMaps
from bigvit.data.objects import OwnObjects, joined
from bigvit.data.workers import NUMBERS, slot_bytes


class Fields(NamedTuple):
    """What a slot holds, to be written to."""

    numbers: NDArray[np.int64]  # (3, B) targets, ids and slots of the epoch
    drawn: NDArray[np.float64]  # (B, D) how the device is to vary the images
    # (B, 2) height and width of what is no filling; (B, 0) where there is none
    sizes: NDArray[np.int64]
    where: NDArray[np.float64]  # (B, 5 + 6 n); (B, 0) without maps, as those below
    classes: NDArray[np.int32]  # (B, h x w x k)
    scores: NDArray[np.float16]  # (B, h x w x k)
    labels: NDArray[np.uint8]  # (B, H x W); (B, 0) where pixels have none
    valid: NDArray[np.bool_]  # (B,)
    pixels: NDArray[np.uint8]  # (B, C x H x W)
    views: list[NDArray[np.uint8]]  # of each group (B, V x C x h x w)


class Ring:
    """Slots, each as large as a micro-batch."""

    def __init__(
        self,
        slots: int,
        images: int,
        shape: tuple[int, int, int],
        drawn: int = 0,
        map_shape: tuple[int, int, int] | None = None,
        where: int = 0,
        views: Sequence[tuple[int, int, int, int]] = (),
        scene: Literal["labels", "objects"] | None = None,
    ) -> None:
        """
        Args:
            shape: of an image, (C, H, W).
            drawn: numbers that are drawn for each, D.
            map_shape: of its map of labels, (h, w, k), if it has one.
            where: numbers that say what is seen of it.
            views: of each group of its further views (V, C, h, w).
            scene: what else is known of it than one label.

        Raises:
            Unread: there is not so much memory.
        """
        self.images, self.shape, self.drawn = images, shape, drawn
        self.map_shape, self.where, self.views = map_shape, where, views
        self.scene = scene
        self.size = slot_bytes(shape, images, views) + sum(self._more)
        try:
            self.memory = mmap.mmap(-1, slots * self.size)
        except (OSError, OverflowError) as error:
            raise Unread(
                f"{slots} micro-batches of {images} images, {slots * self.size / 1e9:,.1f} GB, do "
                f"not fit into memory ({error}); use fewer --workers, or a smaller --micro-batch"
            ) from None
        self.free = deque(range(slots))  # as the rank knows; what is not is on its way
        _RINGS[id(self)] = self

    def __reduce__(self) -> tuple[object, ...]:
        return _ring, (id(self),)  # the same in a data process, which is a fork of the rank

    @property
    def parts(self) -> list[int]:
        """Where in a slot the fields after the first begin, bytes."""
        pixels = [math.prod(shape) * self.images for shape in (self.shape, *self.views)]
        own = [24 * self.images, *self._more, (NUMBERS - 24) * self.images]
        return list(accumulate(own + pixels[:-1]))

    @property
    def _more(self) -> list[int]:
        """Bytes of the fields that not all have: drawn, sizes, where, classes, scores
        and labels."""
        entries = 0 if self.map_shape is None else math.prod(self.map_shape)
        labels = math.prod(self.shape[1:]) if self.scene == "labels" else 0
        sizes = 0 if self.scene is None else 16
        each = (8 * self.drawn, sizes, 8 * self.where, 4 * entries, 2 * entries, labels)
        return [size * self.images for size in each]

    def fields(self, slot: int) -> Fields:
        content = np.frombuffer(self.memory, np.uint8, self.size, slot * self.size)
        split = np.split(content, self.parts)
        numbers, drawn, sizes, where, classes, scores, labels, valid, pixels, *views = split
        return Fields(
            numbers.view(np.int64).reshape(3, -1),
            drawn.view(np.float64).reshape(self.images, self.drawn),
            sizes.view(np.int64).reshape(self.images, len(sizes) // (8 * self.images)),
            where.view(np.float64).reshape(self.images, self.where),
            classes.view(np.int32).reshape(self.images, len(classes) // (4 * self.images)),
            scores.view(np.float16).reshape(self.images, len(scores) // (2 * self.images)),
            labels.reshape(self.images, len(labels) // self.images),
            valid.view(np.bool_),
            pixels.reshape(self.images, -1),
            [each.reshape(self.images, -1) for each in views],
        )

    def content(self, slot: int) -> Tensor:
        """A slot's bytes, which change once it is free."""
        return torch.frombuffer(
            self.memory, dtype=torch.uint8, count=self.size, offset=slot * self.size
        )


_RINGS = WeakValueDictionary[int, Ring]()


def _ring(number: int) -> Ring:
    return _RINGS[number]


class Filled(NamedTuple):
    """A slot that holds a micro-batch, as a data process hands it over."""

    ring: Ring
    slot: int
    bad: tuple[int, ...]  # images that could not be read, ascending
    core_seconds: float  # that it took
    objects: Sequence[OwnObjects] | None = None  # of each image, where they are known
    turned: bool = False  # whether the images are W x H
    content: Tensor | None = None  # a copy of the slot's, which may be free then

    def pin_memory(self) -> "Filled":
        """With a copy in memory that torch has pinned, and uses again: called by torch's thread."""
        return self._replace(content=self.ring.content(self.slot).pin_memory())

    def batch(self) -> Batch:
        """The micro-batch, whose tensors are views of one; the slot is free then."""
        ring, content = self.ring, self.content
        chans, *size = ring.shape
        if content is None:
            content = ring.content(self.slot).clone()
        ring.free.append(self.slot)
        count = ring.images
        fields = content.tensor_split(ring.parts)
        (numbers, drawn, sizes, *of_maps, labels, valid, pixels), views = fields[:9], fields[9:]
        targets, ids, slots = numbers.view(torch.int64).view(3, count)
        return Batch(
            pixels.view(count, chans, *(size[::-1] if self.turned else size)),
            targets,
            ids,
            slots,
            -1,
            -1,
            valid.view(torch.bool),
            torch.tensor(self.bad, dtype=torch.int64),
            varied=drawn.view(torch.float64).view(count, -1) if ring.drawn else None,
            maps=None if ring.map_shape is None else _maps(of_maps, count, ring.map_shape),
            core_seconds=self.core_seconds,
            views=tuple(
                each.view(count, *shape) for each, shape in zip(views, ring.views, strict=True)
            ),
            labels=labels.view(count, *ring.shape[1:]) if ring.scene == "labels" else None,
            objects=None if self.objects is None else joined(self.objects),
            sizes=None if ring.scene is None else sizes.view(torch.int64).view(count, 2),
        )


def _maps(parts: list[Tensor], images: int, shape: tuple[int, int, int]) -> SparseMaps:
    where, classes, scores = parts
    return SparseMaps(
        where.view(torch.float64).view(images, -1),
        classes.view(torch.int32).view(images, *shape),
        scores.view(torch.float16).view(images, *shape),
    )
