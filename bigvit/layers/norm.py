"""LayerNorm between a float32 residual stream and branches of the weights' type."""

import torch.nn.functional as F
from torch import Tensor, nn


class LayerNorm(nn.LayerNorm):
    """LayerNorm (arXiv:1607.06450) over D, computed in the type of its input."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__(dim, eps=eps)

    def forward(self, input: Tensor) -> Tensor:
        """The stream (..., D), float32 or wider -> (..., D) in the weights' type."""
        weight, bias = self.weight.to(input.dtype), self.bias.to(input.dtype)
        return F.layer_norm(input, self.normalized_shape, weight, bias, self.eps).to(
            self.weight.dtype
        )
