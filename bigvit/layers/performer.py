"""Attention in linear time by positive random features (arXiv:2009.14794), as T2T-ViT has it.

Shapes: B images, N tokens, C input and D output width, F features.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bigvit.layers.norm import LayerNorm
from bigvit.layers.precision import upcast

LEAST_SUM = 1e-8
"""Added to the sum of attention weights."""


class Performer(nn.Module):
    """A layer that turns C-wide tokens into D-wide ones: one head of attention, whose value is the
    residual, then an MLP (T2T-ViT, arXiv:2101.11986, section 3.1). The features' directions w are
    frozen. The authors' dropout of 0.1 is left out."""

    def __init__(self, in_dim: int, dim: int, eps: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(dim // 2, dim), requires_grad=False)
        self.norm1 = LayerNorm(in_dim, eps)
        self.kqv = nn.Linear(in_dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = LayerNorm(dim, eps)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, C), float32 or wider -> (B, N, D) in the same type."""
        kqv = self.kqv(self.norm1(x))
        k, q, v = upcast(kqv).chunk(3, dim=2)
        k_BNF, q_BNF = self._features(k), self._features(q)
        sums_BN1 = q_BNF @ k_BNF.sum(dim=1)[:, :, None] + LEAST_SUM
        y = q_BNF @ (k_BNF.transpose(1, 2) @ v) / sums_BN1
        y = v + upcast(self.proj(y.to(kqv.dtype)))
        return y + upcast(self.mlp(self.norm2(y)))

    def _features(self, x: Tensor) -> Tensor:
        """exp(w x - |x|^2 / 2) / sqrt(F): inner products approximate exp(q k)."""
        w = upcast(self.w)
        return (F.linear(x, w) - x.square().sum(dim=2, keepdim=True) / 2).exp() / len(w) ** 0.5
