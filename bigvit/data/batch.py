"""A micro-batch, as the loader makes it and the task takes it."""

from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """A micro-batch. Shapes: B images, C channels."""

    images: Tensor  # (B, C, H, W) uint8
    targets: Tensor  # (B,) int64 class numbers
    ids: Tensor  # (B,) int64: which image of the data set
    slots: Tensor  # (B,) int64: where in the epoch
    number: int  # global batches consumed before this one
    micro: int  # of this rank's micro-batches in the global batch
    valid: Tensor  # (B,) bool: false where there is no image: an evaluation's fillers, bad ones
    draws: dict[str, Tensor]  # everything random in the forward pass
    bad: Tensor  # (any,) int64, distinct: images that could not be read; stays on the host

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device; copies from pinned memory do not wait."""
        move = {name: value.to(device, non_blocking=True) for name, value in self.draws.items()}
        tensors = {
            name: getattr(self, name).to(device, non_blocking=True)
            for name in ("images", "targets", "ids", "slots", "valid")
        }
        return self._replace(**tensors, draws=move)
