"""One run of a recipe on ranks that joined already, and the weights of an engine there."""

import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import tiny
import torch
from torch import Tensor

from bigvit.data.prepare import Inputs
from bigvit.engines.engine import Pending
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Command, Recipe, Run, batch_layout
from bigvit.task import Task
from bigvit.training.loop import run
from bigvit.training.run_folder import RunFolder
from bigvit.training.start import plan_start

Way = int | str
"""A ZeRO stage, or "ENGINE SHARDING"."""


def options(way: Way) -> dict[str, Any]:
    """What a `Run` is told of engine and sharding."""
    if isinstance(way, int):
        return {"sharding": f"zero{way}"}
    return dict(zip(("engine", "sharding"), way.split(), strict=True))


def train(ranks: Ranks, folder: Path, recipe: Recipe, **options: object) -> str:
    """One run of the recipe, as `scripts/train.py` does it after its checks; not to its end."""
    values = {
        "log_every": 1,
        "workers": 0,
        "micro_batch": tiny.MICRO_BATCH,
        "stop_after": tiny.updates(recipe),
        **options,
    }
    command = Command(folder.name, recipe, Run(run_dir=folder, **values), ())
    start = plan_start(command)
    ranks.agree(0)  # every rank has looked before rank 0 writes
    opened = RunFolder(folder, command, ranks.world) if ranks.rank == 0 else None
    layout = batch_layout(recipe, ranks.world, command.run.micro_batch)
    outcome = run(command, layout, start, ranks, opened, lambda: False)
    if opened is not None:
        opened.write_status({"done": 0, "requeue": 85}[outcome])
        opened.close()
    return outcome


def whole(engine: Any, ranks: Ranks, kind: str = "weight") -> dict[str, torch.Tensor]:
    """Every weight, or its average or a moment, gathered from the slices bit for bit."""
    names = dict(engine.task.named_parameters())
    shapes = {name: tuple(getattr(p, "ds_shape", p.shape)) for name, p in names.items()}
    found = {name: torch.zeros(shape) for name, shape in shapes.items()}
    for part in engine.slices():
        if part.kind == kind and part.writer:
            found[part.name].view(-1)[part.start : part.stop] = part.view
    bits = {name: ranks.sum(tensor.view(torch.int32)) for name, tensor in found.items()}
    return {name: tensor.view(torch.float32) for name, tensor in bits.items()}


def one_at_a_time(pending: Sequence[Pending]) -> list[Pending]:
    """The same, each of which sees that the images of the one before are gone."""
    made: list[weakref.ref[Tensor]] = []

    def make(each: Pending) -> Inputs:
        assert all(ref() is None for ref in made)
        inputs = each()
        made.append(weakref.ref(inputs.images))
        return inputs

    return [partial(make, each) for each in pending]


class InfiniteGradient(torch.autograd.Function):
    """The same tensor, whose gradient is infinite."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:  # pyright: ignore
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # pyright: ignore
        return torch.full_like(gradient, float("inf"))


@contextmanager
def changed_losses(
    numbers: set[int], ranks: Ranks, change: Callable[[Tensor], Tensor]
) -> Generator[None]:
    """The last rank's losses of these global batches are changed."""
    forward = Task.forward

    def changed(self: Task, inputs: Inputs | Tensor) -> dict[str, Tensor]:
        losses, last = forward(self, inputs), ranks.rank == ranks.world - 1
        if isinstance(inputs, Inputs) and inputs.number in numbers and last:
            losses = {name: change(loss) for name, loss in losses.items()}
        return losses

    Task.forward = changed
    try:
        yield
    finally:
        Task.forward = forward
