"""The MLP of a transformer block."""

import torch.nn.functional as F
from torch import Tensor, nn


class Mlp(nn.Module):
    """Two linear layers with GELU between them, applied to every token by itself."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return self.fc2(F.gelu(self.fc1(x)))
