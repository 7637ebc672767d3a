"""Trained models side by side on one test set: which images they classify differently (thesis table
3.4), what each gets right, and how sure each is of it.

Shapes: M predictions (of a model, or of a head of it), N images, B of a batch, K classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bigvit.checkpoint.asked import Model, from_run, from_timm, refuse_untrained
from bigvit.checkpoint.of_timm import TIMM
from bigvit.data.loader import test_batches
from bigvit.data.prepare import Normalise
from bigvit.data.sources import Source, open_source
from bigvit.data.sources.part import PartSource
from bigvit.data.workers import workers_for
from bigvit.ranks.joining import Ranks, alone
from bigvit.recipe import Data, Digits
from bigvit.task import PREDICTION

BINS = 15  # of equal width, of the calibration error (arXiv:1706.04599)
QUANTILE = 1.959964  # of the normal distribution, for 95 %
TRUTH = "truth"


@dataclass(frozen=True)
class Answers:
    """What M predictions say of the N images that all of them could be asked about."""

    names: list[str]  # of the predictions
    classes: list[str]  # of the test set
    ids: Tensor  # (N,) int64: the images' numbers in the test set
    truth: Tensor  # (N,) int64: their classes
    best: Tensor  # (M, N) int64: the class of the largest probability
    sure: Tensor  # (M, N) float32: that probability
    apart: Tensor  # (N,) float32: the Jensen-Shannon divergence of the predictions, nats

    @property
    def right(self) -> Tensor:
        """(M, N) bool."""
        return self.best == self.truth

    def disagreement(self) -> dict[str, dict[str, float]]:
        """The share of images that two classify differently; the truth is one of them."""
        rows = dict(zip([TRUTH, *self.names], [self.truth, *self.best], strict=True))
        return {
            one: {other: (mine != its).double().mean().item() for other, its in rows.items()}
            for one, mine in rows.items()
        }

    def calibration_error(self, prediction: int) -> float:
        """The expected calibration error: over bins of how sure it is, the distance between that
        and how often it is right, weighted by images."""
        sure, right = self.sure[prediction].double(), self.right[prediction].double()
        which = (sure * BINS).ceil().clamp(1, BINS).long() - 1
        gaps = torch.zeros(BINS, dtype=torch.float64).index_add(0, which, right - sure)
        return (gaps.abs().sum() / len(sure)).item()

    def difference(self, one: int, other: int) -> tuple[float, float, float]:
        """By how many points of top-1 one is better than the other, and a 95 % confidence
        interval of that: the images are the same, so those on which both are right or wrong say
        nothing (Agresti and Min 2005, Wald's with half a case added to each of four)."""
        mine, its = self.right[one], self.right[other]
        better, worse = int((mine & ~its).sum()), int((its & ~mine).sum())
        count, more, less = len(self.truth) + 2, better + 0.5, worse + 0.5
        middle = (more - less) / count
        half = QUANTILE * (more + less - count * middle**2) ** 0.5 / count
        points = 100 * (better - worse) / len(self.truth)
        return points, 100 * (middle - half), 100 * (middle + half)

    def most_apart(self, count: int) -> Tensor:
        """The places (count,) of the images whose predictions are furthest apart."""
        return self.apart.argsort(descending=True, stable=True)[:count]

    def as_json(self) -> dict[str, Any]:
        """All numbers."""
        top1 = (100 * self.right.double().mean(dim=1)).tolist()
        each = {
            name: {"top1": top1[i], "ece": self.calibration_error(i)}
            for i, name in enumerate(self.names)
        }
        pairs = [
            {"models": [self.names[i], self.names[j]], "points": d, "interval_95": [low, high]}
            for i, j in combinations(range(len(self.names)), 2)
            for d, low, high in [self.difference(j, i)]
        ]
        whole = {"images": len(self.truth), "models": each}
        return whole | {"disagreement": self.disagreement(), "differences": pairs}


def compare(
    given: Sequence[str],
    data: Data | None,
    data_root: Path | None,
    batch_size: int,
    workers: int | None = None,
    ema: bool = False,
    most: int | None = None,
) -> tuple[Answers, Source, Data]:
    """Ask every model about every test image that can be read, all of them batch by batch.

    Args:
        given: run folders or checkpoints, or timm:NAME; each reads images as it was trained to.
        data: of the test set; None for that of the first run.
        ema: the average of a run's weights instead of them.
        most: images, evenly spaced, where there are more; None for all.

    Returns:
        What they say, the test set, and how its images are read.

    Raises:
        Damaged: no checkpoint of a run is whole.
        ValueError: a model cannot be read, or its classes are not the test set's.
    """
    ranks = alone()
    runs = {each: from_run(each, ema, ranks) for each in given if not each.startswith(TIMM)}
    for each, run in runs.items():
        refuse_untrained(each, run.classifies)
    given_data = data is not None
    coarser = None
    if data is None:
        first = next(iter(runs.values()))
        data, coarser = first.data, first.classes_map
    for each, model in runs.items():
        if _kind(model.data) != _kind(data):
            raise ValueError(
                f"{each} was trained on {_kind(model.data)}, and the test set has {_kind(data)}; "
                "compare models of the same kind of images"
            )
    test = open_source(data, "test", data_root, coarser)
    if len(test.classes) > data.classes or (given_data and len(test.classes) < data.classes):
        raise ValueError(
            f"the test set has {len(test.classes):,} classes, and its recipe {data.classes:,}; "
            "choose the recipe of these images (--recipe), or another --data-root"
        )
    if most is not None and len(test) > most:
        test = PartSource(test, np.arange(most) * len(test) // most)
    models = [runs[each] if each in runs else from_timm(each, data, ranks) for each in given]
    names = _distinct([model.name for model in models])
    models = [model._replace(name=name) for model, name in zip(models, names, strict=True)]
    parts = list(_asked(models, test, batch_size, workers_for(workers), ranks))
    if not any(len(part.ids) for part in parts):
        raise ValueError("no test image could be read")
    joined = {
        name: torch.cat([getattr(part, name) for part in parts], dim=-1)
        for name in ("ids", "truth", "best", "sure", "apart")
    }
    return replace(parts[0], **joined), test, data


@torch.no_grad()
def _asked(
    models: Sequence[Model], test: Source, batch_size: int, workers: int, ranks: Ranks
) -> Iterator[Answers]:
    """What all say, batch by batch."""
    views = [torch.tensor(_columns(model, test), device=ranks.device) for model in models]
    normalised = [Normalise(model.data, ranks.device) for model in models]
    each = max(1, workers // len(models)) if workers else 0
    streams = [test_batches(test, m.data, batch_size, 0, 1, each) for m in models]
    for batches in zip(*streams, strict=True):
        said: dict[str, Tensor] = {}
        for model, view, normalise, batch in zip(models, views, normalised, batches, strict=True):
            for head, logits in model.predict(normalise(batch.images)).items():
                name = model.name if head == PREDICTION else f"{model.name}: {head}"
                said[name] = logits.float()[:, view].softmax(dim=1).cpu()
                if not said[name].isfinite().all():
                    raise ValueError(
                        f"{name}: its logits are not finite; choose another checkpoint"
                    )
        valid = torch.stack([batch.valid for batch in batches]).all(dim=0)
        shares = torch.stack(list(said.values()))[:, valid]
        sure, best = shares.max(dim=2)
        apart = _entropy(shares.mean(dim=0)) - _entropy(shares).mean(dim=0)
        ids, truth = batches[0].ids[valid], batches[0].targets[valid]
        yield Answers(list(said), test.classes, ids, truth, best, sure, apart)


def _entropy(shares: Tensor) -> Tensor:
    """Of probabilities (..., K) -> (...), nats."""
    return torch.special.entr(shares).sum(dim=-1)


def _kind(data: Data) -> str:
    return "digits of 8 x 8 pixels" if isinstance(data, Digits) else "colour images"


def _columns(model: Model, test: Source) -> list[int]:
    """The outputs of a model that are about the test set's classes, in their order: by name where
    these are known, or by number where the test set's names are numbers (ImageNet-V2)."""
    numbers = [str(number) for number in range(model.outputs)]
    if model.classes is None or test.classes == numbers != model.classes:
        if model.outputs != len(test.classes):
            raise ValueError(
                f"{model.name} tells {model.outputs:,} classes apart, whose names are not known, "
                f"and the test set has {len(test.classes):,}; choose models of its classes"
            )
        return list(range(model.outputs))
    places = {name: place for place, name in enumerate(model.classes)}
    if missing := [name for name in test.classes if name not in places]:
        raise ValueError(
            f"{model.name} does not know the test set's class {missing[0]!r} and "
            f"{len(missing) - 1:,} more; choose models of its classes, or another --data-root"
        )
    return [places[name] for name in test.classes]


def _distinct(names: Sequence[str]) -> list[str]:
    """Names with a number behind those that occur more than once."""
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})"
        for i, name in enumerate(names)
    ]
