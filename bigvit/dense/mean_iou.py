"""Mean intersection over union of classes of pixels."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bigvit.data.bad import gather
from bigvit.data.loader import in_order
from bigvit.data.pixel_labels import WholeScene, WholeScenes
from bigvit.data.prepare import Normalise
from bigvit.data.sources import Source
from bigvit.dense.windows import Predict, Seeing
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Data, Segmentation
from bigvit.recipe.scene import UNTOLD

SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)  # of mmsegmentation's test with several


@dataclass(frozen=True)
class Overlaps:
    """How the predicted classes of pixels overlap with their own; pixels whose class is not told
    are left out."""

    images: int  # that could be read
    classes: tuple[str, ...]  # names, by class number
    intersections: tuple[int, ...]  # pixels that are, and are predicted to be, of each class
    predicted: tuple[int, ...]  # pixels that are predicted to be of each
    own: tuple[int, ...]  # pixels that are of each
    bad: tuple[str, ...]  # names of images that could not be read
    seconds: float = field(compare=False)  # that it took

    @property
    def unions(self) -> list[int]:
        """Pixels that are, or are predicted to be, of each class."""
        each = zip(self.intersections, self.predicted, self.own, strict=True)
        return [predicted + own - both for both, predicted, own in each]

    @property
    def ious(self) -> list[float | None]:
        """Of each class, percent; None where it is neither there nor predicted."""
        return _percent(self.intersections, self.unions)

    def as_json(self) -> dict[str, Any]:
        """Percentages: means over the classes that are there or predicted (IoU), or there
        (accuracy), and over pixels."""
        pixels = sum(self.own)
        return {
            "images": self.images,
            "bad_images": len(self.bad),
            "pixels": pixels,
            "miou": _mean(self.ious),
            "mean_accuracy": _mean(_percent(self.intersections, self.own)),
            "pixel_accuracy": 100 * sum(self.intersections) / max(1, pixels),
            "class_iou": dict(zip(self.classes, self.ious, strict=True)),
        }

    def said(self, averaged: Mapping[str, Any] | None) -> str:
        """The means in words, the average's behind them."""
        shown = self.as_json()
        also = "" if averaged is None else f" (average {averaged['miou']:.2f} %)"
        return f"mIoU {shown['miou']:.2f} %{also}  pixels {shown['pixel_accuracy']:.2f} %"


def _percent(parts: Sequence[int], wholes: Sequence[int]) -> list[float | None]:
    each = zip(parts, wholes, strict=True)
    return [100 * part / whole if whole else None for part, whole in each]


def _mean(values: Sequence[float | None]) -> float:
    there = [value for value in values if value is not None]
    return math.fsum(there) / max(1, len(there))


def mean_iou(
    predict: Predict,
    source: Source,
    data: Data,
    batch_size: int,
    ranks: Ranks,
    workers: int = 0,
    agreed: Callable[[Callable[[], Any]], Any] = lambda fetch: fetch(),
    scales: Sequence[float] = (1.0,),
    flips: bool = False,
    only: Sequence[int] | None = None,
    seen: Callable[[WholeScene, Tensor], object] = lambda scene, classes: None,
) -> Overlaps:
    """Count how predictions overlap with what pixels are. Collective: every rank predicts equally
    often, and knows the same in the end.

    Images are taken in groups of `batch_size`, each by one rank, and a group's windows fill whole
    batches: so the batch that a window is predicted in does not depend on the number of ranks.

    Args:
        predict: normalised windows (B, 3, H, W) -> the logits of pixels (B, K, H, W), by name.
        agreed: fetches a group (none after the last), or raises; on every rank alike.
        workers: processes of this rank that decode.
        scales: at which each image is seen, as factors of the data's `longest` and `shortest`.
        flips: whether it is seen mirrored, too.
        only: numbers of the images that are looked at; left out: all.
        seen: is told of each image that this rank predicted, and of the classes of its pixels.

    Raises:
        Interrupted: `agreed` did, on every rank.
    """
    assert isinstance(data, Segmentation)
    began = time.perf_counter()
    count = data.classes
    # intersections, predicted, own; and the images
    totals = torch.zeros(3 * count + 1, dtype=torch.int64)
    bad = list[int]()
    normalise = Normalise(data, ranks.device)
    wanted = range(len(source)) if only is None else only
    mine = shared(wanted, batch_size, ranks.rank, ranks.world)
    ids = (id for group in mine for id in group)
    stream = in_order(WholeScenes(source, data, scales), ids, workers)
    steps = iter(range(-(-len(wanted) // (batch_size * ranks.world))))

    def fetch() -> list[WholeScene] | None:
        step = next(steps, None)
        if step is None:
            return None
        return [_read(next(stream)) for _ in (mine[step] if step < len(mine) else ())]

    try:
        while (scenes := agreed(fetch)) is not None:
            bad += [scene.id for scene in scenes if scene.bad]
            seeing = Seeing(scenes, data, flips, normalise)
            batches = ranks.agree(seeing.batches(batch_size))
            for scene, classes in seeing.predicted(predict, batch_size, batches):
                totals += _counted(scene, classes, count)
                seen(scene, classes)
    finally:
        stream.close()
    *counts, images = ranks.sum(totals).tolist()
    both, predicted, own = (tuple(counts[i * count : (i + 1) * count]) for i in range(3))
    every = gather(torch.tensor(sorted(bad), dtype=torch.int64), ranks).tolist()
    return Overlaps(
        images,
        tuple(source.classes),
        both,
        predicted,
        own,
        tuple(source.name(id) for id in every),
        time.perf_counter() - began,
    )


def shared(wanted: Sequence[int], size: int, rank: int, world: int) -> list[Sequence[int]]:
    """A rank's groups of so many images."""
    groups = [wanted[i : i + size] for i in range(0, len(wanted), size)]
    return groups[rank::world]


def _read(made: Any) -> WholeScene:
    if isinstance(made, Exception):
        raise made
    return made


def _counted(scene: WholeScene, classes: Tensor, count: int) -> Tensor:
    """What an image adds to the totals."""
    labels = torch.from_numpy(scene.labels).to(classes.device).long()
    told = labels != UNTOLD
    own, predicted = labels[told], classes[told]
    each = [
        torch.bincount(part, minlength=count) for part in (own[own == predicted], predicted, own)
    ]
    return torch.cat([*each, each[0].new_ones(1)]).cpu()
