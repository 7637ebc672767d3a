"""Token labelling, ReLabel and MixToken, written out number by number in float64, from what their
papers and the code of LV-ViT's authors compute (tlt/loss/cross_entropy.py, tlt/data/mixup.py)."""

import math
from collections.abc import Sequence

Numbers = Sequence[float]


def cross_entropy(logits: Numbers, label: Numbers, smoothing: float) -> float:
    """Of one label, of which a share is spread over all classes."""
    largest = max(logits)
    total = largest + math.log(sum(math.exp(z - largest) for z in logits))
    each = [(1 - smoothing) * p + smoothing / len(label) for p in label]
    return -sum(p * (z - total) for p, z in zip(each, logits, strict=True))


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


def crop_label(scores: Sequence[Sequence[Numbers]]) -> list[float]:
    """The label of one image's map of scores (h, w, K): the softmax of their mean."""
    cells = [cell for row in scores for cell in row]
    mean = [sum(cell[k] for cell in cells) / len(cells) for k in range(len(cells[0]))]
    exponentials = [math.exp(z - max(mean)) for z in mean]
    return [each / sum(exponentials) for each in exponentials]


def relabel(
    logits: Sequence[Numbers],
    scores: Sequence[Sequence[Sequence[Numbers]]],
    boxes: Sequence[tuple[int, int, int, int]],
    group: int,
    smoothing: float,
) -> float:
    """The mean over images of logits (B, K) with labels mixed by the area of what is mixed."""
    losses: list[float] = []
    for i, (top, bottom, left, right) in enumerate(boxes):
        partner = i // group * group + group - 1 - i % group
        cells = len(scores[i]) * len(scores[i][0])
        own = 1 - (bottom - top) * (right - left) / cells
        pairs = zip(crop_label(scores[i]), crop_label(scores[partner]), strict=True)
        label = [own * one + (1 - own) * other for one, other in pairs]
        losses.append(cross_entropy(logits[i], label, smoothing))
    return sum(losses) / len(losses)
