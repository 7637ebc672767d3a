"""Mixup, CutMix and MixToken within groups of the global batch: drawn on the host, applied on the
device; MixToken by the model.

A group's samples share one draw. The partner of the i-th sample of a group is the i-th from its
end, as in timm, where the group is the whole batch. Shapes: B images, C channels, H x W pixels, K
classes.
"""

from typing import NamedTuple

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor

from bigvit import keyed_random
from bigvit.recipe import Data, Images, ImageSize, Mix, MixToken, sides

Span = tuple[int, int]


class MixDraws(NamedTuple):
    """How each sample is mixed with its partner."""

    blend: Tensor  # (B,): weight of its own pixels outside the box (mixup's lambda, or 1)
    box: Tensor  # (B, 4) int64: rows [top, bottom), columns [left, right) that are the partner's,
    # pixels; MixToken's are of whole patches
    target: Tensor  # (B,): weight of its own target


def draw(data: Data, seed: int, number: int, span: Span) -> MixDraws | None:
    """How the samples at positions [start, stop) of a global batch, whole groups, are mixed; None
    where data are not mixed."""
    if not isinstance(data, Images) or (mix := data.mix) is None:
        return None
    start, stop = span
    assert start % mix.group == 0 and stop % mix.group == 0, "the layout keeps groups whole"
    drawn = [
        _draw_group(mix, data.image_size, seed, number, group)
        for group in range(start // mix.group, stop // mix.group)
    ]
    blends, boxes, targets = zip(*drawn, strict=True)
    return MixDraws(
        torch.tensor(blends, dtype=torch.float32).repeat_interleave(mix.group),
        torch.tensor(boxes, dtype=torch.int64).repeat_interleave(mix.group, dim=0),
        torch.tensor(targets, dtype=torch.float32).repeat_interleave(mix.group),
    )


def _draw_group(
    mix: Mix | MixToken, size: ImageSize, seed: int, number: int, group: int
) -> tuple[float, tuple[int, int, int, int], float]:
    which, u, row, column = keyed_random.uniform(4, "mix", seed, number, group).tolist()
    if isinstance(mix, MixToken):
        cut, alpha, cell = True, mix.alpha, mix.cell
    else:
        cut = which < mix.switch if mix.mixup and mix.cutmix else bool(mix.cutmix)
        alpha, cell = mix.cutmix if cut else mix.mixup, 1
    if not alpha:
        return 1.0, (0, 0, 0, 0), 1.0
    own = float(betaincinv(alpha, alpha, u))
    if not cut:
        return own, (0, 0, 0, 0), own
    rows, columns = (side // cell for side in sides(size))
    top, bottom = _part(rows, row, own)
    left, right = _part(columns, column, own)
    area = (bottom - top) * (right - left)
    box = (cell * top, cell * bottom, cell * left, cell * right)
    return 1.0, box, 1 - area / (rows * columns)


def _part(side: int, place: float, own: float) -> tuple[int, int]:
    """Where the box lies on an axis, cut off at the image's borders."""
    half, middle = int(side * np.sqrt(1 - own)) // 2, int(place * side)
    return max(middle - half, 0), min(middle + half, side)


def mix_images(images: Tensor, draws: MixDraws, group: int) -> Tensor:
    """Images (B, C, H, W), normalised -> mixed with their partners."""
    partners = _partners(images, group)
    blend = draws.blend.to(images.dtype)[:, None, None, None]
    mixed = images * blend + partners * (1 - blend)
    top, bottom, left, right = draws.box[:, :, None, None, None].unbind(1)
    rows = torch.arange(images.shape[2], device=images.device)[None, None, :, None]
    columns = torch.arange(images.shape[3], device=images.device)[None, None, None, :]
    inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    return torch.where(inside, partners, mixed)


def mix_targets(targets: Tensor, draws: MixDraws, group: int) -> Tensor:
    """Targets (B, K), distributions -> mixed with their partners'."""
    own = draws.target[:, None]
    return targets * own + _partners(targets, group) * (1 - own)


def patch_sources(mix: MixToken, size: ImageSize, draws: MixDraws) -> Tensor:
    """Of which image (B, N) int64 of a micro-batch each patch is, row by row."""
    height, width = (side // mix.cell for side in sides(size))
    box, numbers = draws.box // mix.cell, torch.arange(len(draws.box), device=draws.box.device)
    top, bottom, left, right = box[:, :, None].unbind(1)
    rows = torch.arange(height, device=box.device)
    columns = torch.arange(width, device=box.device)
    down, across = (rows >= top) & (rows < bottom), (columns >= left) & (columns < right)
    inside = (down[:, :, None] & across[:, None]).flatten(1)
    return torch.where(inside, _partners(numbers, mix.group)[:, None], numbers[:, None])


def _partners(values: Tensor, group: int) -> Tensor:
    return values.unflatten(0, (-1, group)).flip(1).flatten(0, 1)
