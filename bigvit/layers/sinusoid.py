"""Positions that are not learned."""

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=8)  # made once, not in every forward pass
def sinusoid(positions: int, dim: int, device: torch.device) -> Tensor:
    """Sine and cosine of a position at dim / 2 frequencies (arXiv:1706.03762, section 3.5).

    Returns:
        (positions, dim) float32.
    """
    position = torch.arange(positions, device=device, dtype=torch.float64)[:, None]
    pair = torch.arange(0, dim, 2, device=device, dtype=torch.float64)
    angles = position / 10000 ** (pair / dim)
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :dim].float()
