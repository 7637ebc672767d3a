# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""What the loop and a checkpoint ask of an engine."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from bigvit.data.prepare import Inputs
from bigvit.engines.norms import Norms
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Rates
from bigvit.task import Task

BuildTask = Callable[[], Task]
"""Builds the task. The engine calls it, so that it can choose where."""

Pending = Callable[[], Inputs]
"""Makes a micro-batch's inputs on the device. An engine calls it just before their forward pass,
and keeps none: one micro-batch's float images are there at a time."""

Check = Callable[[float], None]
"""Looks at an update's loss before it is applied, the same on every rank, and may raise."""


@dataclass(frozen=True)
class StepInfo:
    """What an update saw. Reading a loss or the norm waits for the device."""

    named: Mapping[str, Tensor | float]  # losses, weighted, mean over the global batch
    norm: Tensor | float  # of the global batch's gradient, before clipping
    applied: bool = True  # false: the fp16 gradient overflowed, and the batch was skipped
    loss_scale: float = 1.0  # that the gradient was computed with
    norms: Norms | None = None  # where they were asked for

    @cached_property
    def losses(self) -> dict[str, float]:
        """Losses by name."""
        return {name: float(value) for name, value in self.named.items()}

    @property
    def loss(self) -> float:
        """What was minimised."""
        return sum(self.losses.values())

    @property
    def grad_norm(self) -> float:
        """Norm of the global batch's gradient, before clipping."""
        return float(self.norm)


@dataclass(frozen=True)
class Slice:
    """A rank's part of a named tensor, in full precision."""

    name: str  # as in the task's state
    kind: str  # weight, exp_avg, exp_avg_sq, ema, buffer, kept
    shape: tuple[int, ...]  # of the whole tensor
    start: int  # first element of the flattened tensor
    stop: int  # one past the last
    view: Tensor  # (stop - start,), the memory itself
    writer: bool  # is this rank the one that saves it

    @property
    def dtype(self) -> torch.dtype:
        return self.view.dtype


def buffer_slices(statistics: Mapping[str, Tensor], writer: bool) -> Iterator[Slice]:
    """A task's statistics, whole and the same on every rank."""
    for name, buffer in statistics.items():
        view = buffer.view(-1)
        yield Slice(name, "buffer", tuple(buffer.shape), 0, len(view), view, writer)


def total(group: dist.ProcessGroup | None, device: torch.device, values: Tensor) -> Tensor:
    """The sum over a process group, None for all ranks, of tensors that may lie on the host, as
    offloaded ones do. Collective."""
    summed = values.to(device)
    dist.all_reduce(summed, group=group)
    return summed.to(values.device)


def _average(statistics: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Every rank has seen other images: buffers become their means over ranks. Collective."""
    if buffers := list(statistics.values()):
        flat = torch.cat([buffer.view(-1) for buffer in buffers])
        dist.all_reduce(flat)
        means = (flat / ranks.world).split([buffer.numel() for buffer in buffers])
        for buffer, mean in zip(buffers, means, strict=True):
            buffer.copy_(mean.view_as(buffer))


class NotFinite(Exception):
    """A loss or a gradient norm is infinite or not a number; raised on every rank alike."""


class Engine(Protocol):
    """A task with its optimizer, spread over ranks in some way.

    In float32 every engine, stage and world size gives the same weights, up to the order of sums.
    """

    ranks: Ranks
    task: Task

    def update(
        self,
        micro: Sequence[Pending],
        rates: Rates,
        check: Check | None = None,
        norms: bool = False,
    ) -> StepInfo:
        """One optimizer step on this rank's micro-batches of a global batch.

        Args:
            rates: as the recipe's `rates` says.
            check: sees the loss before the weights change, at the price of waiting for it.
            norms: whether norms by block are wanted.

        Raises:
            NotFinite: on every rank, before the weights change. What `check` raises, too. Of that
                gradient nothing is left: filled from a checkpoint, the engine goes on as a new one.
        """
        ...

    def predict(self, images: Tensor) -> Tensor:
        """Normalised images (B, C, H, W) -> logits (B, K). Every rank calls it equally often:
        gathering weights is collective."""
        ...

    def predictions(self, images: Tensor) -> dict[str, Tensor]:
        """The same by name, and those of each head that they are made of, as `Task.predictions`."""
        ...

    def slices(self) -> Iterator[Slice]:
        """This rank's part of what a checkpoint holds: of a tensor, the same of every kind. A fresh
        optimizer's moments are zeros."""
        ...

    def scalars(self) -> dict[str, Any]:
        """What else a resumed run needs, the same on every rank."""
        ...

    def loaded(self, scalars: dict[str, Any]) -> None:
        """Take over what was read into the slices' views."""
        ...


def sound(losses: dict[str, Tensor]) -> Tensor:
    """The sum of losses (). One that is not finite makes its gradient so too, which the norm shows:
    nobody has to wait for the device to look at it."""
    loss = torch.stack(list(losses.values())).sum()
    return loss * torch.where(loss.detach().isfinite(), 1.0, torch.nan)


def backward(losses: dict[str, Tensor], scale: float, count: int) -> dict[str, Tensor]:
    """Add to the gradients those of one of `count` micro-batches, and return its losses.

    Args:
        scale: of the loss whose gradient is computed.
    """
    (sound(losses) * scale / count).backward()
    return losses


def mean_losses(losses: Sequence[dict[str, Tensor]]) -> Tensor:
    """Mean of each named loss over this rank's micro-batches, float32 (losses,)."""
    return torch.stack([torch.stack(list(each.values())) for each in losses]).detach().mean(dim=0)


def mean_over_ranks(
    task: Task,
    losses: Sequence[dict[str, Tensor]],
    statistics: Mapping[str, Tensor],
    ranks: Ranks,
) -> dict[str, Tensor]:
    """Means over the global batch of each named loss; and, in place, of the task's statistics. Not
    finite on one rank is not finite on all. Collective."""
    means = mean_losses(losses)
    dist.all_reduce(means)
    _average(statistics, ranks)
    return dict(zip(task.names, (means / ranks.world).unbind(), strict=True))


def not_finite(losses: Mapping[str, float]) -> NotFinite | None:
    """The error that says which loss is not finite, if one is."""
    if all(map(math.isfinite, losses.values())):
        return None
    shown = ", ".join(f"{name} {value}" for name, value in losses.items())
    return NotFinite(f"the loss is not finite ({shown}); the update was not applied")


GRADIENT = "the gradient norm is not finite; the update was not applied"
