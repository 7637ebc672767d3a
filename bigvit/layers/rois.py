"""Features of boxes: RoIAlign (arXiv:1703.06870, section 3) of each on its own level of a pyramid
(arXiv:1612.03144, equation 1), with shapes that do not depend on which level that is.

Levels are laid beside each other into one map, each with its border repeated once, so that one call
of torchvision's kernel serves all boxes. In float32 or wider: it has no bfloat16.

Shapes: B images, C channels, a level h x w, R boxes.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import roi_align

from bigvit.layers.precision import upcast

CANONICAL = 224.0  # side of a box, pixels, that belongs to the third level


class Atlas:
    """A pyramid's levels in one map."""

    def __init__(self, levels: Sequence[Tensor], strides: Sequence[float]) -> None:
        """Args:
        levels: (B, C, h, w) each, finest first.
        strides: of each, pixels.
        """
        first, *others = (_bordered(upcast(level)) for level in levels)
        width = max((level.shape[3] for level in others), default=0)
        column = [F.pad(level, (0, width - level.shape[3])) for level in others]
        corners, top = [(1.0, 1.0)], 1.0
        for level in others:
            corners.append((first.shape[3] + 1.0, top))
            top += level.shape[2]
        parts = [first, *([torch.cat(column, 2)] if others else [])]
        height = max(part.shape[2] for part in parts)
        self.map = torch.cat([F.pad(part, (0, 0, 0, height - part.shape[2])) for part in parts], 3)
        self.corners, self.strides = corners, strides

    def align(self, boxes: Tensor, size: int, sampling: int, aligned: bool) -> Tensor:
        """Features (B x R, C, size, size) of boxes.

        Args:
            boxes: (B, R, 4): left, top, right, bottom, pixels, within the image.
            sampling: samples of a cell along each axis; 0: as many as it has cells of the level.
            aligned: whether pixels' centres are at halves.
        """
        images, count, _ = boxes.shape
        boxes = boxes.to(self.map.dtype)
        level = levels_of(boxes, len(self.strides))
        # as a choice among numbers: a tensor of them would be a copy to the device that waits
        x, y, scale = (torch.zeros_like(boxes[..., 0]) for _ in range(3))
        for i, ((left, top), stride) in enumerate(zip(self.corners, self.strides, strict=True)):
            here = level == i
            x, y = torch.where(here, left, x), torch.where(here, top, y)
            scale = torch.where(here, 1 / stride, scale)
        moved = boxes * scale[..., None] + torch.stack([x, y, x, y], -1)
        of = torch.arange(images, device=boxes.device, dtype=boxes.dtype).repeat_interleave(count)
        rois = torch.cat([of[:, None], moved.flatten(0, 1)], 1)
        return roi_align(self.map, rois, (size, size), 1.0, sampling or -1, aligned)


def levels_of(boxes: Tensor, levels: int) -> Tensor:
    """Which level each box (..., 4) belongs to, 0 the finest."""
    area = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    found = torch.floor(2 + torch.log2(area.sqrt() / CANONICAL) + 1e-6)
    return found.clamp(0, levels - 1).long()


def _bordered(x: Tensor) -> Tensor:
    """(B, C, h, w) -> (B, C, h + 2, w + 2). By slices: torch's padding has a gradient whose sums
    are in no fixed order on a GPU."""
    x = torch.cat([x[:, :, :1], x, x[:, :, -1:]], 2)
    return torch.cat([x[..., :1], x, x[..., -1:]], 3)
