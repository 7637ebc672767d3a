"""Weights that know where patches lie, brought to another grid: positions, and what ResMLP has
across patches.

Shapes: N = h x w patches of a grid, D width.
"""

import math
from collections.abc import Collection, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Grid = tuple[int, int]
"""Patches down and across."""

POSITIONS, LINEAR, MLP = "pos_embed", ".linear_tokens.", ".mlp_tokens."
CLASS_MLP = "blocks_token_only."


class Unfit(ValueError):
    """Weights that cannot be read, or are not of the recipe's model."""


def of_grid(name: str) -> bool:
    """Whether a weight is another at another grid."""
    return name == POSITIONS or LINEAR in name or MLP in name


def patches_of(weights: Mapping[str, Tensor], others: int = 0) -> int | None:
    """How many patches weights are of; None where none of them knows.

    Args:
        others: positions before theirs.
    """
    if POSITIONS in weights:
        return weights[POSITIONS].shape[1] - others
    for name, weight in weights.items():
        if name.endswith((f"{LINEAR}weight", f"{MLP}fc1.weight")):
            return weight.shape[1] - name.startswith(CLASS_MLP)
    return None


def lie_on(weights: Mapping[str, Tensor], grid: Grid) -> bool:
    """Whether there are weights that know a grid, and whether it is this one."""
    if POSITIONS in weights:
        return are_of(weights[POSITIONS], grid)
    return patches_of(weights) == math.prod(grid)


def counted(names: Collection[str]) -> str:
    """What a grid's cells are to a person, by the weights that know it."""
    return "patches" if POSITIONS not in names and any(map(of_grid, names)) else "positions"


def resampled(
    weights: Mapping[str, Tensor], source: Grid, grid: Grid, resampling: str
) -> dict[str, Tensor]:
    """Those of the weights that are another at another grid, bicubic.

    Args:
        resampling: "antialiased" as timm does it, or "plain" as facebookresearch/deit's main.py.

    Raises:
        Unfit: one of them cannot be, or they are not of the source's grid.
    """
    found: dict[str, Tensor] = {}
    for name in filter(of_grid, weights):
        weight = weights[name]
        if MLP in name:
            raise Unfit(
                f"{name} belongs to an MLP across {source[0]} x {source[1]} patches, whose "
                f"hidden layer lies on no grid that could become {grid[0]} x {grid[1]}; keep the "
                "resolution, or start it from scratch"
            )
        if name == POSITIONS:
            found[name] = resample_positions(weight, source, grid, resampling)
        elif name.endswith("weight"):
            found[name] = _matrix(name, weight, source, grid, resampling)
        elif name.startswith(CLASS_MLP):
            found[name] = weight  # of the class token alone
        else:
            found[name] = _resize(weight[None], source, grid, resampling)[0]
    return found


def resample_positions(
    positions: Tensor, source: Grid, grid: Grid, resampling: str = "antialiased"
) -> Tensor:
    """Positions (1, N, D) of a grid of h x w -> (1, N', D) of another, bicubic. Those of up to two
    class tokens before them stay as they are.

    Args:
        resampling: as of `resampled`.
    """
    if not are_of(positions, source):
        raise Unfit(f"{positions.shape[1]} positions are not those of {source[0]} x {source[1]}")
    patches = math.prod(source)
    others, positions = positions[:, :-patches], positions[:, -patches:]
    resized = _resize(positions[0].T, source, grid, resampling).T[None]
    return torch.cat([others, resized], dim=1)


def resample_tables(
    weights: Mapping[str, Tensor], windows: Mapping[str, Grid], known: Mapping[str, Grid]
) -> dict[str, Tensor]:
    """Those of Swin's tables of relative positions (N, H) that are another for other windows: of
    smaller ones the middle, whose offsets are the same; of larger ones bicubic, as its authors do
    it. Tables that are of no square window, nor of a known one, stay as they are.

    Args:
        windows: that each table is wanted for, by name.
        known: that each is of, where that is known; the others' are square.
    """
    found: dict[str, Tensor] = {}
    for name, (down, across) in windows.items():
        table, (h, w) = weights[name], (2 * down - 1, 2 * across - 1)
        side = math.isqrt(len(table))
        high, wide = (2 * each - 1 for each in known[name]) if name in known else (side, side)
        if high * wide != len(table) or (high, wide) == (h, w):
            continue
        map_1Hss = table.float().T.unflatten(1, (high, wide))[None]
        if h <= high and w <= wide:
            top, left = (high - h) // 2, (wide - w) // 2
            resized = map_1Hss[..., top : top + h, left : left + w]
        else:
            resized = F.interpolate(map_1Hss, (h, w), mode="bicubic", align_corners=False)
        found[name] = resized[0].flatten(1).T.to(table.dtype)
    return found


def are_of(positions: Tensor, grid: Grid) -> bool:
    """Whether positions (1, N, D) are those of a grid, and of up to two class tokens."""
    return 0 <= positions.shape[1] - math.prod(grid) <= 2


def _matrix(name: str, weight: Tensor, source: Grid, grid: Grid, resampling: str) -> Tensor:
    """A matrix across patches (N, N), or a class-MLP layer's (1, 1 + N), the class token first.

    Each row, a picture of h x w, is resampled and multiplied by N / N', so that the sums over
    patches stay as large; then the rows are, as pictures of h x w rows.
    """
    before, after = math.prod(source), math.prod(grid)
    own = int(name.startswith(CLASS_MLP))
    if weight.shape[1] != before + own:
        raise Unfit(
            f"{name} is of {weight.shape[1] - own} patches, not those of {source[0]} x {source[1]}"
        )
    rows = _resize(weight[:, own:], source, grid, resampling) * (before / after)
    if own:
        return torch.cat([weight[:, :own], rows], dim=1)
    return _resize(rows.T, source, grid, resampling).T.contiguous()


def _resize(maps: Tensor, source: Grid, grid: Grid, resampling: str) -> Tensor:
    """Maps (C, N) -> (C, N')."""
    pictures, smooth = maps.float().unflatten(1, source)[None], resampling == "antialiased"
    resized = nn.functional.interpolate(pictures, size=grid, mode="bicubic", antialias=smooth)
    return resized[0].flatten(1).to(maps.dtype)
