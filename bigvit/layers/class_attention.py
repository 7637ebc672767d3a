"""Class attention: the queries are those of the class tokens alone.

Shapes: B images, C class tokens (one, two where one is distilled, or one a class), N patches, D
width, K classes."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bigvit.layers.mlp import Mlp
from bigvit.layers.norm import LayerNorm
from bigvit.layers.residual import factors, scaled
from bigvit.layers.stochastic_depth import add_branches
from bigvit.recipe import Residual


class ClassAttention(nn.Module):
    """Multi-head attention of class tokens to z (arXiv:2103.17239, equations 2 to 6; thesis 3.8 to
    3.12). z holds the class tokens themselves and the patches, or the patches alone."""

    def __init__(self, dim: int, num_heads: int, class_in_keys: bool, queries: int = 1) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.queries = queries
        self.class_in_keys = class_in_keys
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C + N, D), class tokens first -> (B, C, D)."""
        q, k, v = self._heads_of(x)
        out_BHCd = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out_BHCd.transpose(1, 2).flatten(2))

    def maps(self, x: Tensor) -> Tensor:
        """x (B, C + N, D) -> what each head attends to (B, H, C, N): the patches' shares (3.11)."""
        q, k, _ = self._heads_of(x)
        shares = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(dim=-1)
        return shares[..., self.queries :] if self.class_in_keys else shares

    def _heads_of(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, C + N, D) -> q (B, H, C, d), k and v of what they attend to."""
        # one copy of the patches, as each layer would make one of its own
        z = x if self.class_in_keys else x[:, self.queries :].contiguous()
        q = self.q(x[:, : self.queries])
        return self._heads(q), self._heads(self.k(z)), self._heads(self.v(z))

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, d)."""
        return x.unflatten(2, (self.num_heads, -1)).transpose(1, 2)


class ClassBlock(nn.Module):
    """cls + gamma_1 attention(norm(cls, patches)), then cls + gamma_2 mlp(norm(cls)): the class
    tokens alone are updated. CaiT's second stage is made of these (arXiv:2103.17239), and pooling
    by attention is one (arXiv:2112.13692; thesis section 5.2.1)."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        hidden_dim: int,
        residual: Residual,
        class_in_keys: bool,
        queries: int,
    ) -> None:
        super().__init__()
        self.recompute = False
        self.residual = residual
        self.norm1 = LayerNorm(dim)
        self.attn = ClassAttention(dim, num_heads, class_in_keys, queries)
        self.norm2 = LayerNorm(dim)
        self.mlp = Mlp(dim, hidden_dim)
        self.gamma_1 = factors(residual, dim)
        self.gamma_2 = factors(residual, dim)

    def forward(self, cls: Tensor, x: Tensor) -> Tensor:
        """cls (B, C, D), patches (B, N, D) -> cls (B, C, D)."""
        cls = add_branches(cls, [partial(self._attention, x)], [None], self.recompute)
        return add_branches(cls, [self._mlp], [None], self.recompute)

    def _attention(self, x: Tensor, cls: Tensor) -> Tensor:
        return scaled(self.attn(self.norm1(torch.cat([cls, x], dim=1))), self.gamma_1)

    def _mlp(self, cls: Tensor) -> Tensor:
        return scaled(self.mlp(self.norm2(cls)), self.gamma_2)


class OwnLogits(nn.Linear):
    """A linear head of which each class reads a token of its own: logit k is that of token k."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, K, D) -> logits (B, K)."""
        return torch.einsum("bkd,kd->bk", input, self.weight) + self.bias
