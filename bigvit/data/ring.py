"""Memory that a rank shares with its data processes, which write micro-batches into it.

It is mapped once, before they are started, and cut into slots that are used again and again: its
size is fixed, a micro-batch needs no open file, and /dev/shm is not used.

Shapes: B images in a micro-batch, C channels, H x W pixels.
"""

import mmap
from collections import deque
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bigvit.data.batch import Batch
from bigvit.data.decode import Unread
from bigvit.data.workers import NUMBERS, slot_bytes


class Ring:
    """Slots, each as large as a micro-batch: targets, ids and slots of the epoch (3, B) int64;
    valid (B,) bool; pixels (B, C, H, W) uint8."""

    def __init__(self, slots: int, images: int, shape: tuple[int, int, int]) -> None:
        """Args: shape: of an image, (C, H, W).

        Raises:
            Unread: there is not so much memory.
        """
        self.images, self.shape = images, shape
        self.size = slot_bytes(shape, images)
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

    def fields(self, slot: int) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.uint8]]:
        """A slot's numbers (3, B), valid (B,) and pixels (B, C x H x W), to be written to."""
        content = np.frombuffer(self.memory, np.uint8, self.size, slot * self.size)
        numbers, valid, pixels = np.split(content, [24 * self.images, NUMBERS * self.images])
        shape = self.images, -1
        return numbers.view(np.int64).reshape(3, -1), valid.view(np.bool_), pixels.reshape(shape)

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
    content: Tensor | None = None  # a copy of the slot's, which may be free then

    def pin_memory(self) -> "Filled":
        """With a copy in memory that torch has pinned, and uses again: called by torch's thread."""
        return self._replace(content=self.ring.content(self.slot).pin_memory())

    def batch(self) -> Batch:
        """The micro-batch, whose tensors are views of one; the slot is free then."""
        ring, content = self.ring, self.content
        if content is None:
            content = ring.content(self.slot).clone()
        ring.free.append(self.slot)
        count = ring.images
        numbers, valid, pixels = content.tensor_split([24 * count, NUMBERS * count])
        targets, ids, slots = numbers.view(torch.int64).view(3, count)
        return Batch(
            pixels.view(count, *ring.shape),
            targets,
            ids,
            slots,
            -1,
            -1,
            valid.view(torch.bool),
            torch.tensor(self.bad, dtype=torch.int64),
            core_seconds=self.core_seconds,
        )
