"""A micro-batch, as the loader makes it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from bigvit.data.label_maps.cropping import SparseMaps
from bigvit.data.mix import MixDraws
from bigvit.data.objects import Objects


class Draws(NamedTuple):
    """Everything random in a task's forward pass, by who drew it and takes it back."""

    model: Any  # what its `draws` made
    objectives: tuple[tuple[Tensor, ...], ...]  # what each one's `draws` made
    # what the model's `draws` made for each group of views, from 1 on; None where it is not seen
    views: tuple[Any, ...] = ()


class Batch(NamedTuple):
    """A micro-batch. Shapes: B images, C channels, V views of an image."""

    images: Tensor  # (B, C, H, W) uint8
    targets: Tensor  # (B,) int64 class numbers
    ids: Tensor  # (B,) int64: which image of the data set
    slots: Tensor  # (B,) int64: where in the epoch
    number: int  # global batches consumed before this one
    micro: int  # of this rank's micro-batches in the global batch
    valid: Tensor  # (B,) bool: false where there is no image: an evaluation's fillers, bad ones
    bad: Tensor  # (any,) int64, distinct: images that could not be read; stays on the host
    mix: MixDraws | None = None  # how images are mixed, if they are
    draws: Draws = Draws(None, ())  # of training alone
    varied: Tensor | None = None  # (B, D) float64: what the device has to do to the images
    maps: SparseMaps | None = None  # of labels, if there are some
    core_seconds: float = 0.0  # that data processes took to make it
    # of each group of further views, from group 1 (B, V, C, h, w) uint8
    views: tuple[Tensor, ...] = ()
    labels: Tensor | None = None  # (B, H, W) uint8: each pixel's class, UNTOLD where none is told
    objects: Objects | None = None  # of the images
    sizes: Tensor | None = None  # (B, 2) int64: height and width of what is no filling, pixels

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device; copies from pinned memory do not wait."""
        return self._each(lambda x: x.to(device, non_blocking=True))

    def pinned(self) -> "Batch":
        """The same batch in memory from which copies do not wait; what is there already, stays."""
        return self._each(Tensor.pin_memory)

    def used_on(self, stream: torch.Stream) -> None:
        """Have the allocator keep what was made on another stream until this one is done."""
        self._each(lambda x: x.record_stream(stream) or x)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        rest = {name: value for name, value in self._asdict().items() if name != "bad"}
        return Batch(bad=self.bad, **tree_map_only(Tensor, change, rest))
