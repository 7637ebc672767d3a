"""LayerScale."""

import torch
from torch import Tensor, nn


class LayerScale(nn.Module):
    """A learned diagonal on a residual branch: diag(gamma) f(x) (arXiv:2103.17239, eq. 7)."""

    def __init__(self, dim: int, init: float) -> None:
        super().__init__()
        self.init = init
        self.gamma = nn.Parameter(torch.full((dim,), init))

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) -> (..., D)."""
        return x * self.gamma
