"""The block of a transformer whose branches nothing multiplies.

Shapes: B images, T tokens, D width.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from bigvit.layers.attention import Attention
from bigvit.layers.mlp import Mlp
from bigvit.layers.norm import LayerNorm
from bigvit.layers.precision import upcast
from bigvit.layers.stochastic_depth import Drop, add_branches


class PlainBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(
        self, dim: int, num_heads: int, hidden_dim: int, eps: float = 1e-6, qkv_bias: bool = True
    ) -> None:
        super().__init__()
        self.recompute = False
        self.norm1 = LayerNorm(dim, eps)
        self.attn = Attention(dim, num_heads, qkv_bias=qkv_bias)
        self.norm2 = LayerNorm(dim, eps)
        self.mlp = Mlp(dim, hidden_dim)

    def forward(self, x: Tensor, drop: Sequence[Drop]) -> Tensor:
        """x (B, T, D), what the two branches drop -> (B, T, D)."""
        x = add_branches(x, [self._attention], drop[:1], self.recompute)
        return add_branches(x, [self._mlp], drop[1:], self.recompute)

    def _attention(self, x: Tensor) -> Tensor:
        return upcast(self.attn(self.norm1(x)))

    def _mlp(self, x: Tensor) -> Tensor:
        return upcast(self.mlp(self.norm2(x)))
