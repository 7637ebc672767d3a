"""Which boxes are trained on: matched with objects, and drawn by a key, with shapes that follow
from numbers of boxes alone.

Shapes: N boxes, O objects of all a micro-batch's images and one that is none's, S samples.
"""

import torch
from torch import Tensor
from torchvision.ops import box_iou

WORD = 0xFFFFFFFF
FIRST, LATER = 2**34, 2**33  # above every priority: what is drawn first, and what is left


def priorities(key: Tensor, places: Tensor) -> Tensor:
    """As good as random numbers (N,) in [0, 2**32), int64, the same for the same key (a scalar, as
    large) and place (N,) int64: murmur3's finaliser of each place, twice."""
    x = places
    for _ in range(2):
        x = (x * 0x9E3779B1 + key) & WORD
        x = ((x ^ (x >> 16)) * 0x85EBCA6B) & WORD
        x = ((x ^ (x >> 13)) * 0xC2B2AE35) & WORD
        x = x ^ (x >> 16)
    return x


def match(
    boxes: Tensor, objects: Tensor, own: Tensor, high: float, low: float, rescue: bool
) -> tuple[Tensor, Tensor]:
    """Which object each box overlaps most (N,), and whether it is one (1), none (0) or neither (-1)
    by torchvision's `Matcher`; but that no object is matched with what it does not touch.

    Args:
        boxes, objects: (N, 4) and (O, 4).
        own: (O,) whether an object is in the boxes' image.
        high, low: overlap (intersection over union) from which a box is one, and below which none.
        rescue: whether the box that overlaps an object most is one, too, whatever that is.
    """
    overlap = torch.where(own[:, None], box_iou(objects, boxes), -1.0)
    best, which = overlap.max(dim=0)
    label = (best >= high).long() - ((best >= low) & (best < high)).long()
    if rescue:
        most = overlap.max(dim=1, keepdim=True).values
        label = torch.where(((overlap == most) & (most > 0)).any(dim=0), 1, label)
    return which, label


def sample(label: Tensor, priority: Tensor, count: int, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Up to `count` boxes, `most` of them objects, the rest none; torchvision's
    `BalancedPositiveNegativeSampler`, by priorities.

    Returns:
        Numbers of boxes (S,), those of objects first; whether each is an object's, and whether it
        counts: a box may be there for want of others.
    """
    count, most = min(count, len(label)), min(most, len(label))
    # topk and sums alone: whoever asks how many there are makes the host wait
    best = torch.where(label == 1, priority, -1).topk(most)
    drawn = torch.zeros_like(label).scatter(0, best.indices, (best.values >= 0).long())
    order = torch.where(label == 0, priority + LATER, -1)
    order = torch.where(drawn == 1, priority + FIRST, order)
    values, chosen = order.topk(count)
    return chosen, values >= FIRST, values >= 0


def mask_targets(
    bits: Tensor,
    frames: Tensor,
    starts: Tensor,
    boxes: Tensor,
    size: tuple[int, int],
    cells: int,
    sampling: int,
    aligned: bool,
) -> Tensor:
    """What boxes show of a mask each, (R, cells, cells): torchvision's `roi_align` of the mask,
    whose pixels are looked up where they are packed.

    Args:
        bits: of all masks, as `Objects` has them.
        frames, starts: of each box's mask, (R, 4) and (R,).
        boxes: (R, 4).
        size: of the image, height and width.
        sampling: samples of a cell along each axis.
        aligned: whether pixels' centres are at halves.
    """
    bits = torch.cat([bits, bits.new_zeros(1)])
    along = [_samples(boxes[:, (i, i + 2)], size[1 - i], cells, sampling, aligned) for i in (0, 1)]
    (x, x_share), (y, y_share) = along  # (R, 2 x samples) each
    left, top, width, height = (frames[:, i, None] for i in range(4))
    column, row = x - left, y - top
    there_x = (column >= 0) & (column < width)
    there_y = (row >= 0) & (row < height)
    bit = 8 * starts[:, None, None] + row[:, :, None] * width[:, :, None] + column[:, None]
    there = there_y[:, :, None] & there_x[:, None]
    bit = torch.where(there, bit, 0)
    value = (bits[bit >> 3].long() >> (7 - (bit & 7))) & 1
    value = torch.where(there, value, 0).to(boxes.dtype) * y_share[:, :, None] * x_share[:, None]
    both = value.unflatten(1, (2, cells, sampling)).unflatten(4, (2, cells, sampling))
    return both.sum(dim=(1, 3, 4, 6)) / sampling**2


def _samples(
    ends: Tensor, length: int, cells: int, sampling: int, aligned: bool
) -> tuple[Tensor, Tensor]:
    """The two pixels that each sample along an axis lies between, and their shares: (R, 2 x cells x
    samples), all the first ones before all the second.

    Args:
        ends: of each box on the axis (R, 2).
        length: of the image.
    """
    start = ends[:, 0, None] - (0.5 if aligned else 0.0)
    extent = ends[:, 1, None] - ends[:, 0, None]
    extent = extent if aligned else extent.clamp(min=1.0)
    steps = torch.arange(cells * sampling, device=ends.device)
    at = start + (steps.to(ends.dtype) + 0.5) * (extent / (cells * sampling))
    outside = (at < -1) | (at > length)
    at = at.clamp(0, length - 1)
    first = at.floor()
    second = (first + 1).clamp(max=length - 1)
    share = at - first
    shares = torch.stack([1 - share, share], 1) * ~outside[:, None]
    return torch.cat([first, second], 1).long(), shares.flatten(1)
