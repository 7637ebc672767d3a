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
        qkv_3BHNd = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        q_BHNd, k_BHNd, v_BHNd = torch.unbind(qkv_3BHNd)
        out_BHNd = F.scaled_dot_product_attention(q_BHNd, k_BHNd, v_BHNd)
        return self.proj(out_BHNd.transpose(1, 2).flatten(2))
