"""Maps of labels as the student sees its images: cropped and flipped as these are.

What travels with an image are the k best classes of each of its cells, and where its crop lies.
On the device, in `Prepare`, the cells are written out over all classes, 0 for those that are not
among the best (as the authors' code has it), mixed by RoIAlign (arXiv:1703.06870; aligned,
bilinear, as many samples a bin as it has cells, rounded up) at the student's grid, and softmaxed.

Shapes: B images, h x w cells of a map, k classes of each, H x W cells of the student's grid, K
classes.
"""

from typing import NamedTuple

import torch
from torch import Tensor

ROUNDING = 1e-6  # cells by which a bin may be larger, and still take no sample more


class SparseMaps(NamedTuple):
    """Whole images' maps, and what the crop shows of each."""

    where: Tensor  # (B, 5) float64: left, top, right, bottom as shares of the image; 1 if flipped
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
    left, top, right, bottom, flipped = maps.where.unbind(dim=1)
    down = axis(top, bottom, height, grid[0])
    across = axis(left, right, width, grid[1])
    across = torch.where(flipped[:, None, None] > 0, across.flip(1), across)
    rows = down.float() @ dense.flatten(2)  # (B, H, w x K)
    rows = rows.view(batch, grid[0], width, classes)
    return across.float()[:, None] @ rows


def axis(start: Tensor, stop: Tensor, cells: int, bins: int) -> Tensor:
    """RoIAlign along one axis, as the weight of each cell in each bin (B, bins, cells) float64.

    A sample between the centres of two cells is of both by its distance; one beyond the outermost
    centre is of that cell.

    Args:
        start, stop: of the crop (B,) float64, as shares of the axis.
    """
    size = (stop - start) * (cells / bins)  # of a bin, cells
    count = (size - ROUNDING).ceil().clamp(min=1)
    most = -(-cells // bins)
    sample = torch.arange(most, device=start.device)
    first = torch.arange(bins, device=start.device)[:, None]
    # (B, bins, samples)
    place = (start * cells - 0.5)[:, None, None] + size[:, None, None] * (
        first + (sample + 0.5) / count[:, None, None]
    )
    weight = (sample < count[:, None, None]) / count[:, None, None]
    apart = place.clamp(0, cells - 1)[..., None] - torch.arange(cells, device=start.device)
    return (weight[..., None] * (1 - apart.abs()).clamp(min=0)).sum(dim=2)
