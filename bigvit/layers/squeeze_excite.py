"""Squeeze-and-excitation."""

import torch.nn.functional as F
from torch import Tensor, nn


class SqueezeExcite(nn.Module):
    """Weighs channels by what their means say (arXiv:1709.01507, equations 2 to 4): two layers with
    ReLU between them, and a sigmoid."""

    def __init__(self, dim: int, squeezed: int) -> None:
        super().__init__()
        self.conv_reduce = nn.Conv2d(dim, squeezed, kernel_size=1)
        self.conv_expand = nn.Conv2d(squeezed, dim, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, D, h, w) -> (B, D, h, w)."""
        means = x.mean(dim=(2, 3), keepdim=True)
        return x * self.conv_expand(F.relu(self.conv_reduce(means))).sigmoid()
