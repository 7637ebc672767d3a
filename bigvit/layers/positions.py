"""Learned positions of patches, on the grid of whatever images come in.

Shapes: N = h x w patches of a grid, C tokens before them, D width.
"""

from functools import lru_cache
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import interpolate

Grid = tuple[int, int]


def on_grid(positions: Tensor, own: Grid, grid: Grid) -> Tensor:
    """Positions (1, C + N, D) that were learned on a grid -> (1, C + N', D) of another,
    float32; themselves where it is the same.

    Bicubic, not antialiased, as DINO's authors bring them to the grid of its small crops
    (arXiv:2104.14294), between whole grids. It is a product with two matrices: torch's own
    gradient adds up in an order that is not fixed on a GPU.
    """
    if own == grid:
        return positions
    count = prod(own)
    others, patches = positions[:, :-count], positions[:, -count:].unflatten(1, own)
    down, across = (_weights(*sides, positions.device) for sides in zip(own, grid, strict=True))
    # down first: two plain products
    x = torch.einsum("yh,bhwd->bywd", down, patches.float())
    x = torch.einsum("xw,bywd->byxd", across, x).flatten(1, 2)
    return torch.cat([others.float(), x], dim=1)


@lru_cache(maxsize=64)
def _weights(size: int, wanted: int, device: torch.device) -> Tensor:
    """What each of the `wanted` places takes of `size` ones: (wanted, size) float32."""
    unit = torch.eye(size).view(size, 1, size, 1)
    taken = interpolate(unit, (wanted, 1), mode="bicubic", align_corners=False)
    return taken.view(size, wanted).T.contiguous().to(device)
