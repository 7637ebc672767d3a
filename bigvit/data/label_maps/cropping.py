"""Maps of labels as the student sees its images: cropped and flipped as these are.

What travels with an image are the k best classes of each of its cells, and where its crop lies.
On the device, in `Prepare`, the cells are written out over all classes, 0 for those that are not
among the best (as the authors' code has it), mixed by RoIAlign (arXiv:1703.06870; aligned,
bilinear, as many samples a bin as it has cells, rounded up) at the student's grid, and softmaxed.
Where RandAugment turns, shears or moves the crop, the samples lie where it takes the pixels from;
of what it fills in, all scores are 0.

Shapes: B images, h x w cells of a map, k classes of each, H x W cells of the student's grid, K
classes.
"""

from typing import NamedTuple

import torch
from torch import Tensor

ROUNDING = 1e-6  # cells by which a bin may be larger, and still take no sample more


BOX = 5
"""Numbers that say where a crop lies."""


class SparseMaps(NamedTuple):
    """Whole images' maps, and what the crop shows of each."""

    # (B, 5 + 6 n) float64: left, top, right, bottom as shares of the image; 1 if flipped; and n
    # times where a place (x, y), as shares of the input's sides, comes from (a x + b y + c,
    # d x + e y + f), first by RandAugment's last operation
    where: Tensor
    classes: Tensor  # (B, h, w, k) int32
    scores: Tensor  # (B, h, w, k) float16


def cropped(maps: SparseMaps, grid: tuple[int, int], classes: int) -> Tensor:
    """Shares of the classes (B, H, W, K) float32 in each cell of the student's grid: what the
    teacher says of what the cell shows. One cell, grid (1, 1), is ReLabel's label
    (arXiv:2101.05022)."""
    return aligned(maps, grid, classes).softmax(dim=-1)


def aligned(maps: SparseMaps, grid: tuple[int, int], classes: int) -> Tensor:
    """The scores (B, H, W, K) float32 that are softmaxed."""
    batch, height, width, _ = maps.classes.shape
    dense = torch.zeros(batch, height, width, classes, device=maps.scores.device)
    dense.scatter_(3, maps.classes.long(), maps.scores.float())
    if maps.where.shape[1] > BOX:
        weights = turned(maps.where, (height, width), grid).float()
        return (weights @ dense.flatten(1, 2)).unflatten(1, grid)
    left, top, right, bottom, flipped = maps.where.unbind(dim=1)
    down = axis(top, bottom, height, grid[0])
    across = axis(left, right, width, grid[1])
    across = torch.where(flipped[:, None, None] > 0, across.flip(1), across)
    rows = down.float() @ dense.flatten(2)  # (B, H, w x K)
    rows = rows.view(batch, grid[0], width, classes)
    return across.float()[:, None] @ rows


def turned(where: Tensor, cells: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """The weight of each cell of a map in each bin of the grid (B, H x W, h x w) float64.

    Args:
        where: (B, 5 + 6 n) float64.
    """
    left, top, right, bottom, flipped = where[:, :BOX].unbind(dim=1)
    y, of_row = samples((bottom - top) * (cells[0] / grid[0]), cells[0], grid[0])
    x, of_column = samples((right - left) * (cells[1] / grid[1]), cells[1], grid[1])
    # (B, H, 1, n, 1) and (B, 1, W, 1, m): n x m samples a bin
    y, x = y[:, :, None, :, None], x[:, None, :, None, :]
    weight = of_row[:, None, None, :, None] * of_column[:, None, None, None, :]
    for step in where[:, BOX:, None, None, None, None].split(6, dim=1):
        a, b, c, d, e, f = step.unbind(dim=1)
        x, y = a * x + b * y + c, d * x + e * y + f
        weight = weight * ((x >= 0) & (x <= 1) & (y >= 0) & (y <= 1))
    edges = (each[:, None, None, None, None] for each in (left, top, right, bottom, flipped))
    left, top, right, bottom, flipped = edges
    x = torch.where(flipped > 0, 1 - x, x)
    down = tents((top + (bottom - top) * y) * cells[0] - 0.5, cells[0])
    across = tents((left + (right - left) * x) * cells[1] - 0.5, cells[1])
    down = (down * weight[..., None]).flatten(3, 4)
    return (down.transpose(3, 4) @ across.flatten(3, 4)).flatten(3, 4).flatten(1, 2)


def axis(start: Tensor, stop: Tensor, cells: int, bins: int) -> Tensor:
    """RoIAlign along one axis, as the weight of each cell in each bin (B, bins, cells) float64.

    A sample between the centres of two cells is of both by its distance; one beyond the outermost
    centre is of that cell.

    Args:
        start, stop: of the crop (B,) float64, as shares of the axis.
    """
    share, weight = samples((stop - start) * (cells / bins), cells, bins)
    place = (start[:, None, None] + (stop - start)[:, None, None] * share) * cells - 0.5
    return (weight[:, None, :, None] * tents(place, cells)).sum(dim=2)


def samples(size: Tensor, cells: int, bins: int) -> tuple[Tensor, Tensor]:
    """Where in a crop the samples of each bin of an axis lie (B, bins, samples), as shares of it,
    and the weight of each of a bin's (B, samples).

    Args:
        size: of a bin (B,) float64, in cells.
    """
    count = (size - ROUNDING).ceil().clamp(min=1)[:, None]
    sample = torch.arange(-(-cells // bins), device=size.device)
    first = torch.arange(bins, device=size.device)[:, None]
    return (first + ((sample + 0.5) / count)[:, None]) / bins, (sample < count) / count


def tents(place: Tensor, cells: int) -> Tensor:
    """The weight (..., cells) of each cell in a sample at a place, in cells from the first's
    centre: of both that it lies between by the distance, or of the outermost one."""
    apart = place.clamp(0, cells - 1)[..., None] - torch.arange(cells, device=place.device)
    return (1 - apart.abs()).clamp(min=0)
