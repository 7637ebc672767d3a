"""Token labelling with MixToken, written out number by number in float64, from what their
paper and the authors' code compute (tlt/loss/cross_entropy.py, tlt/models/lvvit.py)."""

import math
from collections.abc import Sequence

Numbers = Sequence[float]


def cross_entropy(logits: Numbers, label: Numbers, smoothing: float) -> float:
    """Of one label, of which a share is spread over all classes."""
    largest = max(logits)
    total = largest + math.log(sum(math.exp(z - largest) for z in logits))
    each = [(1 - smoothing) * p + smoothing / len(label) for p in label]
    return -sum(p * (z - total) for p, z in zip(each, logits, strict=True))


def relabel(
    logits: Sequence[Numbers],
    labels: Sequence[Numbers],
    boxes: Sequence[tuple[int, int, int, int]],
    cells: int,
    group: int,
    smoothing: float,
) -> float:
    """The mean over images. Logits (B, K) are of images whose patches are mixed, labels (B, K) of
    whole crops that are not: they are mixed by the share of so many cells that is the other's."""
    losses: list[float] = []
    for i, (top, bottom, left, right) in enumerate(boxes):
        partner = i // group * group + group - 1 - i % group
        other = (bottom - top) * (right - left) / cells
        pairs = zip(labels[i], labels[partner], strict=True)
        label = [(1 - other) * mine + other * its for mine, its in pairs]
        losses.append(cross_entropy(logits[i], label, smoothing))
    return sum(losses) / len(losses)


def token_labeling(
    logits: Sequence[Sequence[Numbers]],
    maps: Sequence[Sequence[Sequence[Numbers]]],
    boxes: Sequence[tuple[int, int, int, int]],
    group: int,
    smoothing: float,
) -> float:
    """The mean over patches and images. Logits (B, N, K) are of mixed patches, maps (B, h, w, K) of
    images that are not: each patch is compared with the map of the image that it comes from."""
    losses: list[float] = []
    for i, (top, bottom, left, right) in enumerate(boxes):
        partner = i // group * group + group - 1 - i % group
        height, width = len(maps[i]), len(maps[i][0])
        for row in range(height):
            for column in range(width):
                other = top <= row < bottom and left <= column < right
                label = maps[partner if other else i][row][column]
                losses.append(cross_entropy(logits[i][row * width + column], label, smoothing))
    return sum(losses) / len(losses)
