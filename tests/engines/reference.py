"""`single` on the same global batches, its sums taken in another order where asked."""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import tiny
import torch
from torch import Tensor

from bigvit.checkpoint.load import read_weights
from bigvit.checkpoint.manifest import step_name
from bigvit.data.class_weights import labels_for, weights_for
from bigvit.data.label_maps.maps import LabelMaps
from bigvit.data.loader import train_batches
from bigvit.data.prepare import Prepare, Teacher
from bigvit.data.sources import DigitsSource, Source
from bigvit.engines.build import fill, outline
from bigvit.engines.engine import Pending, mean_losses
from bigvit.engines.single import SingleEngine
from bigvit.evaluate import evaluate
from bigvit.keyed_random import permutation
from bigvit.ranks.joining import alone
from bigvit.recipe import Recipe
from bigvit.task import Task

Weights = dict[str, Tensor]


class Reordered(SingleEngine):
    """Micro-batches in a random order, a partial sum for each of two ranks, divided at the end."""

    order: int | None = None
    updates = 0

    def _accumulate(self, micro: Sequence[Pending]) -> Tensor:
        if self.order is None:
            return super()._accumulate(micro)
        shuffled = permutation(len(micro), "order of summation", self.order, self.updates)
        self.updates += 1
        parameters = [p for p in self.task.parameters() if p.requires_grad]
        total = [torch.zeros_like(p) for p in parameters]
        losses: list[dict[str, Tensor]] = []
        for part in (shuffled[::2], shuffled[1::2]):
            for i in part:
                losses.append(self.task(micro[i]()))
                torch.stack(list(losses[-1].values())).sum().backward()
            for sum_, p in zip(total, parameters, strict=True):
                assert (p.grad is not None) == p.requires_grad
                if p.grad is not None:
                    sum_ += p.grad
                p.grad = None
        for sum_, p in zip(total, parameters, strict=True):
            p.grad = sum_ / len(micro) if p.requires_grad else None
        return mean_losses(losses)


def train_single(
    recipe: Recipe,
    order: int | None = None,
    change: Callable[[SingleEngine], None] | None = None,
    teacher: Teacher | None = None,
    source: Source | None = None,
    maps: LabelMaps | None = None,
    kinds: Sequence[str] = ("weight", "ema"),
    updates: int | None = None,
) -> tuple[Weights, list[float]]:
    """Weights after so many updates, by default `tiny.updates` of the recipe, with their average as
    "ema NAME" where there is one, and other kinds likewise, and the loss of every update."""
    engine = Reordered(lambda: Task(recipe), recipe, alone())
    fill(engine, outline(recipe).initial_weight)
    engine.order = order
    if change is not None:
        change(engine)
    source = source or DigitsSource("train")
    given = weights_for(recipe, source), labels_for(recipe, source)
    prepare = Prepare(recipe, engine.ranks.device, teacher, *given)
    batches = train_batches(
        source,
        recipe,
        tiny.cut(recipe, 1),
        *(0, 0, 0),
        engine.task.draws,
        maps=maps,
    )
    losses = [
        engine.update(prepare.later(micro), recipe.rates(i)).loss
        for i, micro in enumerate(islice(batches, updates or tiny.updates(recipe)))
    ]
    names = {kind: "" if kind == "weight" else f"{kind} " for kind in kinds}
    parts = [part for part in engine.slices() if part.kind in names]
    return {
        names[part.kind] + part.name: part.view.view(part.shape).cpu() for part in parts
    }, losses


def evaluated_alone() -> dict[str, Any]:
    """Counts of the first 103 test images by the initial weights of tiny.adamw, on one rank."""
    ranks, task = alone(), Task(tiny.adamw)
    task.init_weights()
    task.to(ranks.device)
    source = DigitsSource("test")
    source.images, source.targets = source.images[:103], source.targets[:103]
    with torch.no_grad():
        return evaluate(task.predict, source, tiny.adamw.data, 10, ranks).as_json()


def trained(run: Path, updates: int = tiny.UPDATES, kind: str = "weight") -> Weights:
    """Weights that a run left after its last update, or their average."""
    return read_weights(run / "checkpoints" / step_name(updates), kind)[1]


def distance(a: Weights, b: Weights) -> float:
    """Relative L2 difference of two whole models."""
    assert a.keys() == b.keys()
    difference = sum(float((a[name].double() - b[name].double()).square().sum()) for name in a)
    return (difference / sum(float(w.double().square().sum()) for w in b.values())) ** 0.5
