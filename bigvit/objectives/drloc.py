"""Dense relative localization (arXiv:2106.03746): drawn pairs of tokens, an MLP that guesses their
offsets, and the loss of its guesses. In float32 whatever the weights' type.

Equations 1 to 7 are those of the supplement, 8 is the paper's (appendix C). The equations write
sums; as in the paper's pseudo-code it is a mean here: over pairs, the two axes and images.

Shapes: B images, N tokens of a grid h x w, D width, M pairs, O outputs of the MLP.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bigvit import keyed_random
from bigvit.data.prepare import Targets
from bigvit.layers.precision import upcast
from bigvit.layers.upcast_linear import UpcastLinear
from bigvit.models.output import Output, TokenMap
from bigvit.objectives.objective import Objective
from bigvit.recipe import DRLoc

Grid = tuple[int, int]
Span = tuple[int, int]

LEAST_VARIANCE = 1e-8
"""Added to sigma squared of equation 6, cells squared: a certain guess has a sigma of 0."""


def draw(
    drloc: DRLoc, grids: Sequence[Grid], name: str, seed: int, number: int, span: Span
) -> tuple[Tensor, ...]:
    """Pairs of tokens for the images at positions [start, stop) of a global batch.

    A position's pairs depend on nothing but the seed, the batch and the position.

    Args:
        grids: that tokens lie on, before they are pooled; one, or one a block.
        name: of the objective in the task.

    Returns:
        A grid's (B, M, 2) int64: cells of the pooled grid, counted row by row, with replacement.
    """
    pooled = [drloc.pooled(grid) for grid in grids]
    counts = [drloc.pairs_of(grid) for grid in pooled]
    start, stop = span
    drawn = np.stack(
        [
            keyed_random.uniform(2 * sum(counts), "drloc", name, seed, number, position)
            for position in range(start, stop)
        ]
    )
    pairs: list[Tensor] = []
    for (h, w), count in zip(pooled, counts, strict=True):
        u, drawn = drawn[:, : 2 * count], drawn[:, 2 * count :]
        cells = (u.reshape(-1, count, 2) * (h * w)).astype(np.int64)
        if drloc.pairs is None:
            cells[:, :, 0] = np.arange(count)
        pairs.append(torch.from_numpy(cells))
    return tuple(pairs)


class Localizer(nn.Module):
    """The localization MLP (table 15): both tokens of a pair -> the offsets between them."""

    def __init__(self, drloc: DRLoc, dim: int, outputs: int) -> None:
        super().__init__()
        widths = [2 * dim, *[drloc.hidden_dim] * drloc.hidden_layers, outputs]
        self.layers = nn.ModuleList(map(UpcastLinear, widths, widths[1:]))

    def forward(self, tokens: Tensor, pairs: Tensor) -> Tensor:
        """tokens (B, N, D), pairs (B, M, 2) of their numbers -> (B, M, O), float32."""
        index_BMx1 = pairs.flatten(1)[:, :, None]
        both = tokens.gather(1, index_BMx1.expand(-1, -1, tokens.shape[2]))
        x = both.unflatten(1, (-1, 2)).flatten(2)
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)


class DenseRelativeLocalization(Objective):
    """The loss with its MLPs: one on the last tokens, or one on each block's."""

    def __init__(self, drloc: DRLoc, maps: Sequence[tuple[int, Grid]]) -> None:
        """Args: maps: width and grid of each block's tokens, before they are pooled."""
        super().__init__("drloc", drloc.weight, drloc.ramp)
        self.drloc = drloc
        blocks = tuple(range(len(maps)))[0 if drloc.blocks == "all" else -1 :]
        self.wanted = () if drloc.blocks == "last" and drloc.normalised else blocks
        maps = [maps[i] for i in blocks]
        self.grids = [grid for _, grid in maps]
        self.mlps = nn.ModuleList(
            Localizer(drloc, dim, sum(drloc.outputs(drloc.pooled(grid)))) for dim, grid in maps
        )

    def draws(self, name: str, seed: int, number: int, span: Span) -> tuple[Tensor, ...]:
        return draw(self.drloc, self.grids, name, seed, number, span)

    def forward(self, output: Output, targets: Targets, draws: Sequence[Tensor]) -> Tensor:
        return self.of_maps(self.tokens_of(output), draws)

    def tokens_of(self, output: Output) -> Sequence[TokenMap]:
        """The tokens that it looks at, before they are pooled."""
        if not self.wanted:
            return [TokenMap(output.tokens, output.grid)]
        return [output.blocks[i] for i in self.wanted]

    def of_maps(self, maps: Sequence[TokenMap], pairs: Sequence[Tensor]) -> Tensor:
        """The loss of tokens before they are pooled, and what `draw` made for their grids."""
        losses: list[Tensor] = []
        for (tokens, grid), mlp, pairs_BM2 in zip(maps, self.mlps, pairs, strict=True):
            pooled, grid = pool(self.drloc, tokens, grid)
            losses.append(loss(self.drloc, mlp(pooled, pairs_BM2), pairs_BM2, grid))
        return torch.stack(losses).sum()

    def predict(self, last: TokenMap, pairs: Tensor) -> Tensor:
        """The offsets (B, M, 2) that the last tokens' MLP guesses, in cells of the pooled grid."""
        tokens, grid = pool(self.drloc, *last)
        return guessed(self.drloc, self.mlps[-1](tokens, pairs), grid)


def pool(drloc: DRLoc, tokens: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
    """Tokens (B, N, D) averaged to the grid that the loss sees, float32, and that grid."""
    pooled, tokens = drloc.pooled(grid), upcast(tokens)
    if pooled == grid:
        return tokens, grid
    x_BDhw = tokens.transpose(1, 2).unflatten(2, grid)
    if drloc.pooling == "overlapping":
        x_BDhw = F.avg_pool2d(x_BDhw, 3, stride=2, padding=1, count_include_pad=False)
    else:
        x_BDhw = F.adaptive_avg_pool2d(x_BDhw, pooled)
    return x_BDhw.flatten(2).transpose(1, 2), pooled


def offsets(pairs: Tensor, grid: Grid) -> Tensor:
    """From the second cell of a pair to the first, down and across, in cells (equation 4).

    Args:
        pairs: (B, M, 2) int64.

    Returns:
        (B, M, 2) int64, in [-(h - 1), h - 1] and [-(w - 1), w - 1].
    """
    down, across = pairs // grid[1], pairs % grid[1]
    return torch.stack([down[..., 0] - down[..., 1], across[..., 0] - across[..., 1]], dim=-1)


def loss(drloc: DRLoc, predicted: Tensor, pairs: Tensor, grid: Grid) -> Tensor:
    """The mean loss of predictions (B, M, O) for pairs (B, M, 2) of cells, a scalar."""
    wanted = offsets(pairs, grid)
    if drloc.offsets in ("absolute", "signed"):  # equations 1 and 2, or 3
        wanted = wanted.abs() if drloc.offsets == "absolute" else wanted
        each = zip(wanted.unbind(-1), _unit(drloc, grid), strict=True)
        return (predicted - torch.stack([axis / unit for axis, unit in each], dim=-1)).abs().mean()
    axes = [
        _classes(drloc, logits, wanted[..., axis], side)
        for axis, (logits, side) in enumerate(zip(_split(predicted, grid), grid, strict=True))
    ]
    return torch.stack(axes).mean()


def guessed(drloc: DRLoc, predicted: Tensor, grid: Grid) -> Tensor:
    """Predictions (B, M, O) as offsets (B, M, 2) in cells; of classes, the expected offset."""
    if drloc.offsets in ("absolute", "signed"):
        each = zip(predicted.unbind(-1), _unit(drloc, grid), strict=True)
        return torch.stack([axis * unit for axis, unit in each], dim=-1)
    axes = [_moments(logits.softmax(dim=-1))[0] for logits in _split(predicted, grid)]
    return torch.stack(axes, dim=-1)


def _unit(drloc: DRLoc, grid: Grid) -> Grid:
    """Cells in a unit of offsets, one number an axis; no tensor, which had to be copied."""
    return grid if drloc.unit == "grid" else (1, 1)


def _split(predicted: Tensor, grid: Grid) -> Sequence[Tensor]:
    """The logits of each axis's 2 k + 1 offsets, -k to k."""
    return predicted.split([2 * side + 1 for side in grid], dim=-1)


def _classes(drloc: DRLoc, logits: Tensor, wanted: Tensor, side: int) -> Tensor:
    """The mean loss of one axis: logits (B, M, 2 k + 1), wanted offsets (B, M)."""
    if drloc.offsets == "classes":  # equation 5
        return F.cross_entropy(logits.flatten(0, 1), (wanted + side).flatten())
    mean, variance = _moments(logits.softmax(dim=-1))  # equation 6
    variance = variance + LEAST_VARIANCE
    return ((wanted - mean).square() / variance + drloc.alpha * variance.log() / 2).mean()


def _moments(p: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance (B, M) of offsets with probabilities (B, M, 2 k + 1)."""
    side = p.shape[-1] // 2
    each = torch.arange(-side, side + 1, device=p.device, dtype=p.dtype)
    mean = (p * each).sum(dim=-1)
    return mean, (p * (each - mean[..., None]).square()).sum(dim=-1)
