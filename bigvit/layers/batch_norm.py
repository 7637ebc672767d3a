"""BatchNorm whose statistics stay float32, and are taken once a batch."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bigvit.layers.precision import upcast

_recomputing = False


@contextmanager
def recomputing() -> Generator[None]:
    """A forward pass that only repeats another, for backward: statistics stay as they are."""
    global _recomputing
    _recomputing = True
    try:
        yield
    finally:
        _recomputing = False


class BatchNorm(nn.BatchNorm2d):
    """BatchNorm (arXiv:1502.03167), eps 1e-5 and momentum 0.1 as a rule, computed in float32.

    Its running mean and variance are float32 whatever the weights' type; engines average them over
    ranks, and checkpoints hold them. Batches are not counted: nothing uses that number. Where they
    are None, nothing is kept, and each batch is normalised by its own (`models/follower.py`). Where
    they are `frozen`, they are constants, and images do not depend on each other.
    """

    running_mean: Any
    running_var: Any
    narrow = True  # whether what comes out is in the weights' type
    frozen = False  # whether training normalises by the running statistics, and leaves them

    def __init__(self, num_features: int, **options: Any) -> None:
        super().__init__(num_features, **options)
        self.num_batches_tracked = None
        # ZeRO's stage 3 makes tensors in the weights' type
        self.running_mean, self.running_var = self.running_mean.float(), self.running_var.float()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "BatchNorm":
        before = self.running_mean, self.running_var
        super()._apply(fn, recurse)
        if self.running_mean is None:
            return self
        now = self.running_mean, self.running_var
        self.running_mean, self.running_var = (
            b.to(n.device, torch.promote_types(n.dtype, torch.float32))
            for b, n in zip(before, now, strict=True)
        )
        return self

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, h, w) or (B, C) -> the same shape, in the weights' type if it is `narrow`."""
        mean, var = self.running_mean, self.running_var
        by_its_own = mean is None or self.training and not self.frozen
        if _recomputing and by_its_own and mean is not None:
            mean, var = mean.clone(), var.clone()
        weight, bias = upcast(self.weight), upcast(self.bias)
        x, momentum = upcast(input), self.momentum or 0.0
        x = F.batch_norm(x, mean, var, weight, bias, by_its_own, momentum, self.eps)
        return x.to(self.weight.dtype) if self.narrow else x


class UpcastBatchNorm(BatchNorm):
    """The same, whose result stays float32 or wider."""

    narrow = False
