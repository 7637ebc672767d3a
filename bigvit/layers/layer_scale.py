"""LayerScale."""

import torch
from torch import Tensor, nn

from bigvit.layers.precision import upcast


class LayerScale(nn.Module):
    """A learned diagonal on a residual branch: diag(gamma) f(x) (arXiv:2103.17239, eq. 7)."""

    def __init__(self, dim: int, init: float) -> None:
        super().__init__()
        self.init = init
        self.gamma = nn.Parameter(torch.full((dim,), init))

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) -> (..., D), float32 or wider: 1e-4 of a branch is below bf16's steps."""
        return x * upcast(self.gamma)  # keeps x in its own type for backward
