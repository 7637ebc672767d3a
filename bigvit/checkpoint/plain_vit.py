"""The weights of a plain ViT, as DeiT's, DINO's and most of timm's are, as those of DeiT III's: the
same function, in other weights."""

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor

Grid = tuple[int, int]
SCALE = re.compile(r"blocks\.\d+\.ls[12]\.gamma")
POSITIONS, CLASS = "pos_embed", "cls_token"


def as_deit3(
    weights: Mapping[str, Tensor], own: Mapping[str, Tensor], grid: Grid | None
) -> dict[str, Tensor] | None:
    """Weights with what DeiT III's ViT has besides: LayerScale, of 1; and with the position of the
    class token in that token, as nothing is added to it there. None where it is not so.

    Args:
        own: the model's, whose names and shapes alone are looked at.
        grid: of the given patches; None where nothing says it.
    """
    scales = [name for name in own if SCALE.fullmatch(name)]
    if not scales or any(SCALE.fullmatch(name) for name in weights) or CLASS not in weights:
        return None
    if "dist_token" in weights or "blocks.0.attn.qkv.weight" not in weights:
        return None
    found = {**weights, **{name: torch.ones(own[name].shape) for name in scales}}
    positions = weights.get(POSITIONS)
    if positions is not None and positions.dim() == 3 and _has_class(positions.shape[1], grid):
        found[CLASS] = weights[CLASS] + positions[:, :1]
        found[POSITIONS] = positions[:, 1:]
    return found


def _has_class(rows: int, grid: Grid | None) -> bool:
    """Whether one of so many positions is the class token's."""
    if grid is not None:
        return rows == math.prod(grid) + 1
    return math.isqrt(rows) ** 2 != rows and math.isqrt(rows - 1) ** 2 == rows - 1
