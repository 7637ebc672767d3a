"""The affine map that stands where a transformer has LayerNorm."""

import torch
from torch import Tensor, nn

from bigvit.layers.precision import upcast


class Affine(nn.Module):
    """A learned factor and shift a channel: Diag(alpha) x + beta (thesis equation 4.1, where alpha
    is lambda), computed in the type of its input. The shapes (1, 1, D) are timm's."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(1, 1, dim))
        self.beta = nn.Parameter(torch.empty(1, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        """The stream (B, N, D), float32 or wider -> (B, N, D) in the weights' type."""
        return torch.addcmul(upcast(self.beta), upcast(self.alpha), x).to(self.alpha.dtype)
