# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""What objectives keep beside weights, as engines see it: where it lies, what it is at first, and
when it changes."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from bigvit.engines.engine import Slice, StepInfo
from bigvit.ranks.joining import Ranks
from bigvit.task import Task

KEPT = "kept"
"""The kind of its slices."""

PIECE = 1 << 22  # elements that are made at once


def meet(task: Task, ranks: Ranks) -> None:
    """Let objectives make room for this rank's part of what they keep."""
    for each in task.objectives.values():
        each.meet(ranks.rank, ranks.world, ranks.device)


def kept_slices(task: Task) -> Iterator[Slice]:
    """This rank's part of it."""
    for name, objective in task.objectives.items():
        for of, shape, start, tensor, writer in objective.kept():
            if count := tensor.numel():
                view = tensor.view(-1)
                yield Slice(f"heads.{name}.{of}", KEPT, shape, start, start + count, view, writer)


def begin(task: Task, part: Slice) -> None:
    """Fill a rank's part with what it is at first, a piece after the other."""
    _, name, of = part.name.split(".", 2)
    fresh: Callable[[str, int, int], Tensor] = task.objectives[name].fresh
    for start in range(part.start, part.stop, PIECE):
        stop = min(start + PIECE, part.stop)
        part.view[start - part.start : stop - part.start].copy_(fresh(of, start, stop).view(-1))


class HasTask(Protocol):
    """An engine, as far as it is looked at here."""

    task: Task


E = TypeVar("E", bound=HasTask)
P = ParamSpec("P")


def settled(
    update: Callable[Concatenate[E, P], StepInfo],
) -> Callable[Concatenate[E, P], StepInfo]:
    """An engine's update, after which objectives are told whether it was applied. Collective."""

    @wraps(update)
    def whole(engine: E, *args: P.args, **named: P.kwargs) -> StepInfo:
        try:
            info = update(engine, *args, **named)
        except BaseException:
            _forget(engine.task)
            raise
        if not info.applied:
            _forget(engine.task)
            return info
        with torch.no_grad():
            for each in engine.task.objectives.values():
                each.applied()
        return info

    return whole


def _forget(task: Task) -> None:
    for each in task.objectives.values():
        each.forget()
