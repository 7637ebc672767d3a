"""What the loop and a checkpoint ask of an engine."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from bigvit.engines.ranks import Ranks
from bigvit.task import Batch, Task

BuildTask = Callable[[], Task]
"""Builds the task with its initial weights. The engine calls it, so that it can choose where."""


@dataclass(frozen=True)
class StepInfo:
    """What an update saw."""

    losses: dict[str, float]  # weighted, mean over the global batch
    grad_norm: float  # of the global batch, before clipping

    @property
    def loss(self) -> float:
        """What was minimised."""
        return sum(self.losses.values())


@dataclass(frozen=True)
class Slice:
    """A rank's part of a named tensor, in full precision."""

    name: str  # as in the task's state
    kind: str  # weight, exp_avg, exp_avg_sq
    shape: tuple[int, ...]  # of the whole tensor
    start: int  # first element of the flattened tensor
    stop: int  # one past the last
    view: Tensor  # (stop - start,), the memory itself
    writer: bool  # is this rank the one that saves it

    @property
    def dtype(self) -> torch.dtype:
        return self.view.dtype


class NotFinite(Exception):
    """A loss or a gradient norm is infinite or not a number; raised on every rank alike."""


class Engine(Protocol):
    """A task with its optimizer, spread over ranks in some way.

    In float32 every engine, stage and world size gives the same weights, up to the order of sums.
    """

    ranks: Ranks
    task: Task

    def update(self, micro: Sequence[Batch], lr: float) -> StepInfo:
        """One optimizer step on this rank's micro-batches of a global batch.

        Raises:
            NotFinite: on every rank, before the weights change.
        """
        ...

    def predict(self, batch: Batch) -> Tensor:
        """Logits (B, K). Every rank calls it equally often: gathering weights is collective."""
        ...

    def slices(self) -> Iterator[Slice]:
        """This rank's part of what a checkpoint holds; a fresh optimizer's moments are zeros."""
        ...

    def scalars(self) -> dict[str, Any]:
        """What else a resumed run needs, the same on every rank."""
        ...

    def loaded(self, scalars: dict[str, Any]) -> None:
        """Take over what was read into the slices' views."""
        ...


def mean_losses(losses: Sequence[dict[str, Tensor]]) -> Tensor:
    """Mean of each named loss over this rank's micro-batches, float32 (losses,)."""
    return torch.stack([torch.stack(list(each.values())) for each in losses]).detach().mean(dim=0)


def require_finite_losses(losses: dict[str, float]) -> None:
    """Raise NotFinite unless every loss is a finite number."""
    if not all(map(_finite, losses.values())):
        shown = ", ".join(f"{name} {value}" for name, value in losses.items())
        raise NotFinite(f"the loss is not finite ({shown}); the update was not applied")


def require_finite_norm(norm: float) -> float:
    """The gradient norm, unless it is not a finite number: then NotFinite."""
    if not _finite(norm) or norm < 0:  # DeepSpeed returns -1 for one that is not finite
        raise NotFinite("the gradient norm is not finite; the update was not applied")
    return norm


def _finite(value: float) -> bool:
    return value - value == 0
