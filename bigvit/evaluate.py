"""Evaluation: every test image counted once, over any number of ranks."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from bigvit.data.bad import gather
from bigvit.data.loader import test_batches, workers_for
from bigvit.data.sources import Source, open_source
from bigvit.engines.ranks import Ranks, alone
from bigvit.recipe import Data, ImageSize
from bigvit.task import DTYPES, Batch
from bigvit.trained import trained


class Interrupted(Exception):
    """An evaluation was not finished."""


@dataclass(frozen=True)
class Counts:
    """How many test images had one of their classes among the best one or five logits."""

    images: int  # that could be read, and have a class
    top1: int
    top5: int
    bad: tuple[str, ...]  # names of those that could not be read
    loss: float = field(compare=False)  # mean cross-entropy with the image's own class
    seconds: float = field(compare=False)  # that it took

    def as_json(self) -> dict[str, float]:
        """Counts, percentages and the loss."""
        images = max(1, self.images)
        return {
            "images": self.images,
            "bad_images": len(self.bad),
            "top1_correct": self.top1,
            "top5_correct": self.top5,
            "top1": 100 * self.top1 / images,
            "top5": 100 * self.top5 / images,
            "test_loss": self.loss,
        }


def evaluate(
    predict: Callable[[Batch], Tensor],
    source: Source,
    data: Data,
    batch_size: int,
    ranks: Ranks,
    workers: int = 0,
    labels: Sequence[Sequence[int]] | None = None,
    agreed: Callable[[Callable[[], Batch | None]], Batch | None] = lambda fetch: fetch(),
) -> Counts:
    """Count what `predict` gets right. Collective: every rank predicts equally often.

    Args:
        agreed: fetches a batch (none after the last), or raises; on every rank alike.
        workers: processes of this rank that decode.
        labels: the classes that count as right, by image number, instead of the source's one;
            an image without any is not counted (ReaL, arXiv:2006.07159).

    Raises:
        Interrupted: `agreed` did, on every rank.
    """
    began = time.perf_counter()
    total, bad = torch.zeros(3, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    loss = torch.zeros((), dtype=torch.float64)
    batches = test_batches(source, data, batch_size, ranks.rank, ranks.world, workers)
    while (batch := agreed(partial(next, batches, None))) is not None:
        logits = predict(batch).cpu()
        right, valid = _right(batch, labels, logits.shape[1])
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices
        hits = right.gather(1, best) & valid[:, None]
        total += torch.stack([valid.sum(), hits[:, 0].sum(), hits.any(dim=1).sum()])
        each = cross_entropy(logits.double(), batch.targets, reduction="none")
        loss += each[valid].sum()
        bad = torch.cat([bad, batch.bad])
    images, top1, top5 = ranks.sum(total).tolist()
    mean = float(ranks.sum(loss)) / max(1, images)
    names = tuple(source.name(id) for id in gather(bad.unique(), ranks).tolist())
    return Counts(images, top1, top5, names, mean, time.perf_counter() - began)


def _right(
    batch: Batch, labels: Sequence[Sequence[int]] | None, classes: int
) -> tuple[Tensor, Tensor]:
    """Which classes are right (B, K), and which images are counted (B,)."""
    if labels is None:
        return one_hot(batch.targets, classes).bool(), batch.valid
    right = torch.zeros(len(batch.targets), classes, dtype=torch.bool)
    for row, id in enumerate(batch.ids.tolist()):
        right[row, list(labels[id])] = True
    return right, batch.valid & right.any(dim=1)


def evaluate_checkpoint(
    checkpoint: Path,
    batch_size: int,
    data_root: Path | None = None,
    workers: int | None = None,
    image_size: ImageSize | None = None,
    crop_ratio: float | None = None,
    labels: Path | None = None,
    ema: bool = False,
) -> dict[str, Any]:
    """Evaluate a checkpoint in this process alone, and say which one it was.

    Args:
        image_size: another resolution than the recipe's; positions are resampled.
        crop_ratio: another crop ratio than the recipe's.
        ema: the average of the weights instead of them.
        labels: ReaL's real.json: for each image in the order of names, the classes that are right.

    Raises:
        Damaged: the checkpoint is not whole.
        ValueError: the data set is not there or not the recipe's, or a value does not fit.
    """
    manifest, task = trained(checkpoint, image_size, ema, crop_ratio)
    recipe = task.recipe
    test_set = open_source(recipe.data, "test", data_root)
    right = _read_labels(labels, test_set, recipe.model.num_classes) if labels else None
    ranks = alone()
    task.to(ranks.device, DTYPES[recipe.precision])

    def predict(batch: Batch) -> Tensor:
        return task.predict(batch.to(ranks.device))

    with torch.no_grad():
        processes = workers_for(workers)
        counts = evaluate(predict, test_set, recipe.data, batch_size, ranks, processes, right)
    return {
        "checkpoint": str(checkpoint),
        "update": manifest.update,
        "weights": "ema" if ema else "last",
        "image_size": recipe.data.image_size,
        **counts.as_json(),
        "images_per_second": counts.images / counts.seconds,
    }


def _read_labels(path: Path, source: Source, classes: int) -> list[list[int]]:
    """ReaL's labels, by image number of the source."""
    try:
        listed = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"--labels {path}: cannot be read ({error})") from None
    if not isinstance(listed, list) or len(listed) != len(source):
        raise ValueError(f"--labels {path}: must hold a list of {len(source)} lists of classes")
    for each in listed:
        if not isinstance(each, list) or not all(
            type(label) is int and 0 <= label < classes for label in each
        ):
            raise ValueError(
                f"--labels {path}: {each} is not a list of classes, 0 to {classes - 1}"
            )
    # the order of file names, whatever folders the files are in
    order = sorted(range(len(source)), key=lambda id: Path(source.name(id)).name)
    return [labels for _, labels in sorted(zip(order, listed, strict=True))]
