"""What every objective is."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bigvit.data.prepare import Targets
from bigvit.models.output import Output
from bigvit.recipe.objective import Ramp


class Kept(NamedTuple):
    """This rank's part of a tensor that an objective keeps."""

    name: str
    shape: tuple[int, ...]  # of all of it
    start: int  # the first element, flattened, that is here
    tensor: Tensor  # on the device; its own type
    writer: bool  # is this rank the one that saves it


class Objective(nn.Module, ABC):
    """A loss, and the weights that it trains beside the model's."""

    wanted: tuple[int, ...] = ()  # blocks of the model whose tokens it looks at, ascending

    def __init__(self, name: str, weight: float, ramp: Ramp | None = None) -> None:
        """Args: name: of its kind, in the log."""
        super().__init__()
        self.name, self.weight, self.ramp = name, weight, ramp

    def draws(self, name: str, seed: int, number: int, span: tuple[int, int]) -> tuple[Tensor, ...]:
        """Everything random about positions [start, stop) of a global batch, made on the host.

        Args:
            name: that tells it from others of its kind in a task.
        """
        return ()

    seen: tuple[int, ...] = ()  # groups of views that it wants of the model (`Output.views`)
    asked: tuple[int, ...] = ()  # groups of views that it wants of the follower; 0 too
    # its submodule that the follower copies, behind the trunk
    followed: str | None = None
    # its parameters that stand still for the first `held_epochs` of the recipe's objective
    held: tuple[str, ...] = ()

    answers: bool = False  # whether it makes the predictions, in the place of the model's own head

    def answer(self, output: Output, size: tuple[int, int]) -> dict[str, Tensor]:
        """What it says of images, by name, of shapes that follow from the images' alone.

        Args:
            output: with the blocks that it wants.
            size: of the images, height and width, pixels.
        """
        raise NotImplementedError(self.name)

    def begin(self, name: str, value: Tensor, generator: torch.Generator) -> Tensor | None:
        """What a parameter begins as; None where `models/init.py` has the rule.

        Args:
            name: of the objective's own.
            value: zeros of its shape, float32; they may be written to.
            generator: the parameter's own, fresh.
        """
        return None

    def meet(self, rank: int, world: int, device: torch.device) -> None:
        """Make room on the device for this rank's part of what is kept. Once, before `kept`."""

    def kept(self) -> Iterable[Kept]:
        """Tensors that training changes by no gradient, and that a checkpoint holds: never module
        buffers, which engines bring to the model's precision and average."""
        return ()

    def fresh(self, name: str, start: int, stop: int) -> Tensor:
        """What elements [start, stop) of a flattened kept tensor are at first."""
        raise NotImplementedError(name)

    def applied(self) -> None:
        """An update was applied: take over what its forward passes noted. Collective."""

    def forget(self) -> None:
        """An update was refused or skipped: nothing of its forward passes is left."""

    @abstractmethod
    def forward(self, output: Output, targets: Targets, draws: Sequence[Tensor]) -> Tensor:
        """The loss, not weighted, a float32 scalar.

        Args:
            draws: what `draws` made.
        """

    def weighted(self, loss: Tensor, epoch: float, epochs: int) -> Tensor:
        """The loss as it is minimised, after so many epochs, begun ones too, of all."""
        loss = self.weight * loss
        return loss if self.ramp is None else self.ramp.factor(epoch, epochs) * loss
