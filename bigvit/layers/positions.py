"""Learned positions, also of another grid than they were made for."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bigvit.layers.precision import upcast


def on_grid(positions: Tensor, own: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """Positions (1, T, D) -> those of a grid; where it is not their own, as small crops have it,
    patches' are interpolated bicubically, as pictures (DINO, arXiv:2104.14294). Class tokens'
    stand before them, and stay.
    """
    if grid == own:
        return positions
    tokens, patches = upcast(positions).tensor_split([positions.shape[1] - math.prod(own)], dim=1)
    pictures = patches.transpose(1, 2).unflatten(2, own)
    resized = F.interpolate(pictures, size=grid, mode="bicubic")
    return torch.cat([tokens, resized.flatten(2).transpose(1, 2)], dim=1)
