"""What every objective is."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from bigvit.data.prepare import Targets
from bigvit.models.output import Output
from bigvit.recipe.objective import Ramp


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
