"""What ResMLP has learned across patches: rows of its matrices as pictures (thesis figure 4.2), and
how sparse they are beside those of its MLPs (figure 4.3).

Shapes: N = h x w patches.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from bigvit.checkpoint.model import read_checkpoint
from bigvit.checkpoint.run import run_of
from bigvit.recipe import ClassMlp, ResMLP
from bigvit.recipe.models.description import Grid

SMALL = 0.05  # of the largest: what counts as nothing
ACROSS = ("linear_tokens", "mlp_tokens.fc1", "mlp_tokens.fc2")
EVERY = (*ACROSS, "mlp_channels.fc1", "mlp_channels.fc2")  # A, or an MLP in its place; B; C


class Rows(NamedTuple):
    """Some rows of a matrix, each a picture of the patches that it reads."""

    name: str  # of the layer
    pictures: Tensor  # (r, c, h, w), as the patches that they are about lie; float32
    sparsity: float  # of the whole matrix


class Learned(NamedTuple):
    """Of one checkpoint."""

    run: str
    update: int
    rows: list[Rows]
    sparsity: dict[str, list[float]]  # by the matrix's name, block by block


def learned(path: Path, side: int = 6, ema: bool = False) -> Learned:
    """Read a checkpoint, or a run folder's newest.

    Args:
        side: as many rows of a matrix across patches, down and across, those of the central patches
            (figure 4.2); of an MLP's, which are of no patch, the first ones.
        ema: the average of the weights instead of them.

    Raises:
        Damaged: no checkpoint is whole.
        ValueError: its model has no such matrices, or there is no average.
    """
    found = read_checkpoint(path, ema)
    model, weights = found.recipe.model, found.model
    if not isinstance(model, ResMLP) or not _has_matrices(model):
        raise ValueError(
            f"{path}: this {type(model).__name__} has no matrices across patches; a ResMLP has "
            "them where model.communication is linear or mlp, and where class-MLP pools"
        )
    grid = model.grid(found.recipe.data.image_size)
    rows: list[Rows] = []
    blocks = [f"blocks.{i}" for i in range(model.depth)]
    for block in blocks:
        for name in ("linear_tokens", "mlp_tokens.fc1"):
            if (weight := weights.get(f"{block}.{name}.weight")) is not None:
                pictures = _some(weight, grid, side, central=name == "linear_tokens")
                rows.append(Rows(f"{block}.{name}", pictures, sparsity(weight)))
    if isinstance(model.pooling, ClassMlp):
        for i in range(model.pooling.depth):
            name = f"blocks_token_only.{i}.linear_tokens"
            weight = weights[f"{name}.weight"]
            rows.append(Rows(name, weight[:, 1:].view(1, 1, *grid).float(), sparsity(weight)))
    run = run_of(found.checkpoint).resolve().name
    return Learned(run, found.manifest.update, rows, _by_matrix(weights, blocks))


def _has_matrices(model: ResMLP) -> bool:
    return model.communication in ("linear", "mlp") or isinstance(model.pooling, ClassMlp)


def sparsity(weight: Tensor) -> float:
    """The share of elements whose absolute value is below 5 % of the largest (section 4.3.3)."""
    size = weight.abs()
    return (size < SMALL * size.max()).float().mean().item()


def _by_matrix(weights: Mapping[str, Tensor], blocks: list[str]) -> dict[str, list[float]]:
    return {
        name: [sparsity(weights[f"{block}.{name}.weight"]) for block in blocks]
        for name in EVERY
        if f"{blocks[0]}.{name}.weight" in weights
    }


def _some(weight: Tensor, grid: Grid, side: int, central: bool) -> Tensor:
    """Rows of a matrix (R, N) as pictures (r, c, h, w)."""
    pictures = weight.float().unflatten(1, grid)
    if not central:
        side = min(side, math.isqrt(len(pictures)))
        return pictures[: side * side].unflatten(0, (side, side))
    pictures = pictures.unflatten(0, grid)
    (top, down), (left, across) = ((max(0, (n - side) // 2), min(n, side)) for n in grid)
    return pictures[top : top + down, left : left + across]
