"""`single` on the same global batches, its sums taken in another order where asked."""

from collections.abc import Sequence
from pathlib import Path

import tiny
import torch
from torch import Tensor

from bigvit.checkpoint.load import read_weights
from bigvit.checkpoint.manifest import step_name
from bigvit.data.loader import train_batches
from bigvit.data.sources import DigitsSource
from bigvit.engines.engine import mean_losses
from bigvit.engines.ranks import alone
from bigvit.engines.single import SingleEngine
from bigvit.random import permutation
from bigvit.recipe import Recipe
from bigvit.task import Batch, Task

Weights = dict[str, Tensor]


class Reordered(SingleEngine):
    """Micro-batches in a random order, a partial sum for each of two ranks, divided at the end."""

    order: int | None = None
    updates = 0

    def _accumulate(self, micro: Sequence[Batch]) -> Tensor:
        if self.order is None:
            return super()._accumulate(micro)
        shuffled = permutation(len(micro), "order of summation", self.order, self.updates)
        self.updates += 1
        parameters = list(self.task.parameters())
        total = [torch.zeros_like(p) for p in parameters]
        losses: list[dict[str, Tensor]] = []
        for part in (shuffled[::2], shuffled[1::2]):
            for i in part:
                losses.append(self.task(micro[i]))
                torch.stack(list(losses[-1].values())).sum().backward()
            for sum_, p in zip(total, parameters, strict=True):
                assert p.grad is not None
                sum_ += p.grad
                p.grad = None
        for sum_, p in zip(total, parameters, strict=True):
            p.grad = sum_ / len(micro)
        return mean_losses(losses)


def train_single(recipe: Recipe, order: int | None = None) -> tuple[Weights, list[float]]:
    """Weights after the whole recipe, and the loss of every update."""

    def build() -> Task:
        task = Task(recipe)
        task.init_weights()
        return task

    engine = Reordered(build, recipe, alone())
    engine.order = order
    batches = train_batches(
        DigitsSource("train"), recipe, tiny.cut(recipe, 1), 0, 0, 0, engine.task.draws
    )
    losses = [engine.update(micro, recipe.lr(i)).loss for i, micro in enumerate(batches)]
    return {name: p.detach() for name, p in engine.task.named_parameters()}, losses


def trained(run: Path, updates: int = tiny.UPDATES) -> Weights:
    """Weights that a run left after its last update."""
    return read_weights(run / "checkpoints" / step_name(updates))[1]


def distance(a: Weights, b: Weights) -> float:
    """Relative L2 difference of two whole models."""
    assert a.keys() == b.keys()
    difference = sum(float((a[name].double() - b[name].double()).square().sum()) for name in a)
    return (difference / sum(float(w.double().square().sum()) for w in b.values())) ** 0.5
