"""Class attention: the queries are those of the class tokens alone.

Shapes: B images, C class tokens (one, or two where one is distilled), N patches, D width."""

import torch.nn.functional as F
from torch import Tensor, nn


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
        q, k = self._queries_and_keys(x)
        v = self._heads(self.v(self._z(x)))
        out_BHCd = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out_BHCd.transpose(1, 2).flatten(2))

    def maps(self, x: Tensor) -> Tensor:
        """x (B, C + N, D) -> what each head attends to (B, H, C, N): the patches' shares (3.11)."""
        q, k = self._queries_and_keys(x)
        shares = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(dim=-1)
        return shares[..., self.queries :] if self.class_in_keys else shares

    def _queries_and_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._heads(self.q(x[:, : self.queries])), self._heads(self.k(self._z(x)))

    def _z(self, x: Tensor) -> Tensor:
        return x if self.class_in_keys else x[:, self.queries :]

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, d)."""
        return x.unflatten(2, (self.num_heads, -1)).transpose(1, 2)
