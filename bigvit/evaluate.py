"""Evaluation: every test image counted once, over any number of ranks."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from bigvit.checkpoint.asked import refuse_untrained
from bigvit.checkpoint.run import CLASSES, class_names, classes_map_of, run_of
from bigvit.checkpoint.trained import trained
from bigvit.data.bad import gather
from bigvit.data.batch import Batch
from bigvit.data.loader import test_batches
from bigvit.data.prepare import Normalise
from bigvit.data.sources import Source, open_source, renumbered
from bigvit.data.workers import workers_for
from bigvit.ranks.joining import Ranks, alone
from bigvit.recipe import Data, ImageSize
from bigvit.recipe.words import read_json
from bigvit.task import DTYPES, PREDICTION


class Interrupted(Exception):
    """An evaluation was not finished."""


class Measured(Protocol):
    """What an evaluation found."""

    @property
    def images(self) -> int:
        """That were looked at."""
        ...

    @property
    def bad(self) -> tuple[str, ...]:
        """Names of those that could not be read."""
        ...

    def as_json(self) -> dict[str, Any]:
        """All of it, by name, as metrics.jsonl has it."""
        ...

    def said(self, averaged: Mapping[str, Any] | None) -> str:
        """It in words, beside what the average of the weights has (its `as_json`), if that was
        measured."""
        ...


@dataclass(frozen=True)
class Counts:
    """How many test images had one of their classes among the best one or five logits."""

    images: int  # that could be read, and have a class
    top1: int
    top5: int
    bad: tuple[str, ...]  # names of those that could not be read
    loss: float = field(compare=False)  # mean cross-entropy with the image's own class
    seconds: float = field(compare=False)  # that it took
    among_all: "Counts | None" = None  # where these are among some logits, the same among all
    # of each head, by name, where several make the prediction
    heads: "Mapping[str, Counts]" = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
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
            **({} if self.among_all is None else {"among_all_classes": self.among_all.scores}),
            **{name: counts.scores for name, counts in self.heads.items()},
        }

    def said(self, averaged: Mapping[str, Any] | None) -> str:
        """The best ones in words, each head's and the average's behind them."""
        shown = self.as_json()
        parts = [f"{n.replace('_', ' ')} {shown[n]['top1']:.2f} %" for n in self.heads]
        parts += [] if averaged is None else [f"average {averaged['top1']:.2f} %"]
        also = f" ({', '.join(parts)})" if parts else ""
        return f"top-1 {shown['top1']:.2f} %{also}  top-5 {shown['top5']:.2f} %"

    @property
    def scores(self) -> dict[str, Any]:
        """What depends on the logits."""
        return {name: n for name, n in self.as_json().items() if "images" not in name}


def evaluate(
    predict: Callable[[Tensor], Tensor | Mapping[str, Tensor]],
    source: Source,
    data: Data,
    batch_size: int,
    ranks: Ranks,
    workers: int = 0,
    labels: Tensor | None = None,
    agreed: Callable[[Callable[[], Batch | None]], Batch | None] = lambda fetch: fetch(),
    among: Sequence[int] | None = None,
) -> Counts:
    """Count what `predict` gets right. Collective: every rank predicts equally often.

    Args:
        predict: normalised images (B, C, H, W) -> logits (B, K), or several by name, the
            prediction's first: each is counted.
        agreed: fetches a batch (none after the last), or raises; on every rank alike.
        workers: processes of this rank that decode.
        labels: (images, K) bool: the classes that count as right instead of the source's one; an
            image without any is not counted (ReaL, arXiv:2006.07159).
        among: classes whose logits are compared, where a test set has not all of them, as
            ImageNet-A and -R (arXiv:1907.07174, 2006.16241); it is then counted among all, too.

    Raises:
        Interrupted: `agreed` did, on every rank.
    """
    began = time.perf_counter()
    views = [None] if among is None else [torch.tensor(among), None]
    nothing = torch.zeros(len(views), 4, dtype=torch.float64)
    totals = {PREDICTION: nothing.clone()}
    bad = torch.zeros(0, dtype=torch.int64)
    normalise = Normalise(data, ranks.device)
    batches = test_batches(source, data, batch_size, ranks.rank, ranks.world, workers)
    while (batch := agreed(partial(next, batches, None))) is not None:
        found = predict(normalise(batch.images))
        for head, logits in ({PREDICTION: found} if isinstance(found, Tensor) else found).items():
            logits = logits.cpu()
            own = one_hot(batch.targets, logits.shape[1]).bool()
            right = own if labels is None else labels[batch.ids]
            for total, view in zip(totals.setdefault(head, nothing.clone()), views, strict=True):
                total += _count(logits, right, batch, view)
        bad = torch.cat([bad, batch.bad])
    summed = ranks.sum(torch.stack(list(totals.values())))
    names = tuple(source.name(id) for id in gather(bad.unique(), ranks).tolist())
    seconds = time.perf_counter() - began
    first, *others = (_counts(each, names, seconds) for each in summed.tolist())
    return replace(first, heads=dict(zip(list(totals)[1:], others, strict=True)))


def _counts(totals: list[list[float]], bad: tuple[str, ...], seconds: float) -> Counts:
    """Of sums as `_count` makes them, those among all classes last."""
    found = None
    for *counts, loss in reversed(totals):
        images, top1, top5 = map(int, counts)
        found = Counts(images, top1, top5, bad, loss / max(1, images), seconds, found)
    assert found is not None
    return found


def _count(logits: Tensor, right: Tensor, batch: Batch, view: Tensor | None) -> Tensor:
    """How many of a batch's images are counted, and are right among the best one and five, and the
    sum of their losses (4,); of the logits of some classes (any,), or of all."""
    counted, targets = batch.valid & right.any(dim=1), batch.targets
    if view is not None:
        place = torch.full((logits.shape[1],), -1)
        place[view] = torch.arange(len(view))
        logits, right, targets = logits[:, view], right[:, view], place[targets]
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices
    hits = right.gather(1, best)[counted]
    losses = cross_entropy(logits.double(), targets, reduction="none")[counted]
    return torch.stack([counted.sum(), hits[:, 0].sum(), hits.any(dim=1).sum(), losses.sum()])


def evaluate_checkpoint(
    path: Path,
    batch_size: int,
    data_root: Path | None = None,
    workers: int | None = None,
    image_size: ImageSize | None = None,
    crop_ratio: float | None = None,
    labels: Path | None = None,
    ema: bool = False,
    dispatch: bool = False,
    memory: float | None = None,
) -> dict[str, Any]:
    """Evaluate a checkpoint, or a run folder's newest, in this process alone, and say which one it
    was.

    The test set's classes are the run's by their names, or by their numbers where they are called 0
    to the last. Where it has only some of them, the logits of these are compared, as is done for
    ImageNet-A and -R, and those of all classes beside that.

    Args:
        image_size: another resolution than the recipe's; positions are resampled.
        crop_ratio: another crop ratio than the recipe's.
        ema: the average of the weights instead of them.
        labels: ReaL's real.json: for each image in the order of names, the classes that are right.
        dispatch: for a model that is larger than a device's memory, as `dispatched` reads it.
        memory: then, GiB of weights on each device; None for what is free.

    Raises:
        Damaged: no checkpoint is whole.
        ValueError: the data set is not there or not the recipe's, or a value does not fit.
    """
    if dispatch:
        from bigvit.checkpoint.dispatch import dispatched

        checkpoint, manifest, task = dispatched(path, memory, image_size, ema, crop_ratio)
    else:
        checkpoint, manifest, task = trained(path, image_size, ema, crop_ratio)
    recipe = task.recipe
    if recipe.dense is not None:
        raise ValueError(f"{path}: its images have no class; see bigvit/dense/of_checkpoint.py")
    refuse_untrained(path, recipe.classifies)
    test_set = open_source(recipe.data, "test", data_root, classes_map_of(checkpoint))
    test_set, among, by = _by_the_runs_classes(test_set, checkpoint, recipe.data.classes)
    right = _read_labels(labels, test_set, recipe.model.num_classes) if labels else None
    ranks = alone()
    if not dispatch:
        task.to(ranks.device, DTYPES[recipe.precision])
    with torch.no_grad():
        predict, processes = task.predictions, workers_for(workers)
        counts = evaluate(
            predict, test_set, recipe.data, batch_size, ranks, processes, right, among=among
        )
    return {
        "checkpoint": str(checkpoint),
        "update": manifest.update,
        "weights": "ema" if ema else "last",
        "image_size": recipe.data.image_size,
        "classes": recipe.data.classes if among is None else len(among),
        "of_classes": recipe.data.classes,
        "classes_by": by,
        **counts.as_json(),
        "images_per_second": counts.images / counts.seconds,
    }


def _by_the_runs_classes(
    test: Source, checkpoint: Path, count: int
) -> tuple[Source, list[int] | None, str]:
    """A test set by the run's class numbers; those that it has, unless it has all; and by what they
    were found."""
    run, here = run_of(checkpoint), len(test.classes)
    file, names = run / CLASSES, class_names(run, count)
    numbers = [str(number) for number in range(count)]
    if names is None:
        if here != count:
            raise ValueError(
                f"the test set has {here:,} classes, and the run {count:,}, whose names are not "
                f"known, as there is no {file}; evaluate a checkpoint that lies in its run folder"
            )
        return test, None, "order"
    if test.classes != names and test.classes == numbers:  # ImageNet-V2
        return test, None, "number"
    try:
        by_names = renumbered(test, names)
    except ValueError as error:
        raise ValueError(f"the test set's classes are not those of {file}: {error}") from None
    some = sorted(map(names.index, test.classes)) if here < len(names) else None
    return by_names, some, "name"


def _read_labels(path: Path, source: Source, classes: int) -> Tensor:
    """ReaL's labels, by image number of the source: (images, classes) bool."""
    try:
        listed = read_json(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"--labels {path}: cannot be read ({error})") from None
    if not isinstance(listed, list) or len(listed) != len(source):
        raise ValueError(f"--labels {path}: must hold a list of {len(source)} lists of classes")
    # the order of file names, whatever folders the files are in
    order = sorted(range(len(source)), key=lambda id: Path(source.name(id)).name)
    right = torch.zeros(len(source), classes, dtype=torch.bool)
    for id, each in zip(order, listed, strict=True):
        if not isinstance(each, list) or not all(
            type(label) is int and 0 <= label < classes for label in each
        ):
            raise ValueError(
                f"--labels {path}: {each} is not a list of classes, 0 to {classes - 1}"
            )
        right[id, each] = True
    return right
