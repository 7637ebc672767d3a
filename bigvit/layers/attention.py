"""Multi-head self-attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head self-attention (arXiv:2010.11929, appendix A), with biases on q, k, v or not."""

    def __init__(self, dim: int, num_heads: int, qkv_bias: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        out_BHNd = F.scaled_dot_product_attention(*self._heads(x))
        return self.proj(out_BHNd.transpose(1, 2).flatten(2))

    def maps(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> what each token attends to (B, H, N, N), shares that sum to 1."""
        q, k, _ = self._heads(x)
        return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(dim=-1)

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, N, D) -> q, k, v (B, H, N, d)."""
        qkv_3BHNd = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        q_BHNd, k_BHNd, v_BHNd = torch.unbind(qkv_3BHNd)
        return q_BHNd, k_BHNd, v_BHNd
