"""Dense relative localization, equation by equation: float64, a loop over images and pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bigvit.models import TokenMap
from bigvit.objectives import DenseRelativeLocalization
from bigvit.recipe import DRLoc

ABSOLUTE = DRLoc(
    weight=0.5,
    ramp=None,
    offsets="absolute",
    unit="grid",
    alpha=0.001,
    blocks="last",
    normalised=True,
    pairs=12,
    grid=None,
    pooling="mean",
    hidden_dim=16,
    hidden_layers=2,
)
VARIANTS = {
    "absolute": ABSOLUTE,
    "signed": replace(ABSOLUTE, offsets="signed"),
    "classes": replace(ABSOLUTE, offsets="classes"),
    "gaussian": replace(ABSOLUTE, offsets="gaussian"),
    "every block": replace(ABSOLUTE, blocks="all"),
    "exhaustive": replace(ABSOLUTE, pairs=None),
    "in cells": replace(ABSOLUTE, unit="cells", hidden_layers=3),
}


def literal(
    drloc: DRLoc, head: DenseRelativeLocalization, maps: list[TokenMap], pairs: Sequence[Tensor]
) -> Tensor:
    """Equation 2, 3, 5, 6, 7 or 8 as a mean over pairs, axes and images, summed over maps."""
    total = torch.zeros((), dtype=torch.float64)
    for i, ((tokens, grid), pairs_BM2) in enumerate(zip(maps, pairs, strict=True)):
        weights = dict(head.mlps[i].named_parameters())
        terms: list[Tensor] = []
        for image, pairs_M2 in enumerate(pairs_BM2):
            e, (h, w) = _pooled(drloc, tokens[image].double(), grid)
            for a, b in pairs_M2.tolist():
                first, second = (a // w, a % w), (b // w, b % w)
                x = torch.cat([e[first[0]][first[1]], e[second[0]][second[1]]])
                d = _mlp(weights, x, drloc.hidden_layers)
                c = (first[0] - second[0], first[1] - second[1])
                terms += _terms(drloc, d, c, (h, w))
        total = total + sum(terms, torch.zeros(())) / len(terms)
    return total


def _pooled(drloc: DRLoc, tokens: Tensor, grid: tuple[int, int]):
    """Rows of cells; a pooled cell is the mean of the cells that lie below it, if in part."""
    h, w = grid
    cells = [[tokens[row * w + column] for column in range(w)] for row in range(h)]
    side = drloc.grid
    if side is None or max(h, w) <= side:
        return cells, grid
    if drloc.pooling == "overlapping":

        def window(at: int, size: int) -> range:
            return range(max(0, 2 * at - 1), min(size, 2 * at + 2))

        h, w = (h + 1) // 2, (w + 1) // 2
    else:

        def window(at: int, size: int) -> range:
            cells = min(size, side)
            return range(at * size // cells, -(-(at + 1) * size // cells))

        h, w = min(h, side), min(w, side)
    pooled = []
    for i in range(h):
        row = []
        for j in range(w):
            inside = [cells[p][q] for p in window(i, grid[0]) for q in window(j, grid[1])]
            row.append(sum(inside[1:], inside[0]) / len(inside))
        pooled.append(row)
    return pooled, (h, w)


def _mlp(weights: Mapping[str, Tensor], x: Tensor, hidden_layers: int) -> Tensor:
    for i in range(hidden_layers + 1):
        x = weights[f"layers.{i}.weight"].double() @ x + weights[f"layers.{i}.bias"].double()
        if i < hidden_layers:
            x = torch.clamp(x, min=0)
    return x


def _terms(drloc: DRLoc, d: Tensor, c: tuple[int, int], k: tuple[int, int]) -> list[Tensor]:
    match drloc.offsets:
        case "absolute":
            return [
                (abs(c[i]) / (k[i] if drloc.unit == "grid" else 1) - d[i]).abs() for i in (0, 1)
            ]
        case "signed":
            return [(c[i] / (k[i] if drloc.unit == "grid" else 1) - d[i]).abs() for i in (0, 1)]
    terms, first = [], 0
    for i in (0, 1):
        logits = d[first : first + 2 * k[i] + 1]
        first += 2 * k[i] + 1
        p = logits.exp() / logits.exp().sum()
        if drloc.offsets == "classes":
            terms.append(-p[c[i] + k[i]].log())
            continue
        classes = range(-k[i], k[i] + 1)
        mu = sum((p[n] * each for n, each in enumerate(classes)), torch.zeros(()))
        var = sum((p[n] * (each - mu) ** 2 for n, each in enumerate(classes)), torch.zeros(()))
        terms.append((c[i] - mu) ** 2 / var + drloc.alpha * var.sqrt().log())
    return terms
