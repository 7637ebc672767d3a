"""A linear layer whose rows have a norm of their own (weight normalisation, arXiv:1602.07868), in
float32 whatever the weights' type."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bigvit.layers.precision import upcast


class UnitRows(nn.Module):
    """x W^T without bias, each row of W divided by its norm, and times its gain if that is trained.

    The gain is a column (out, 1), as torch's `weight_g` is, and decayed as a matrix is.
    """

    def __init__(self, inputs: int, outputs: int, gain: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.gain = nn.Parameter(torch.empty(outputs, 1)) if gain else None

    def forward(self, input: Tensor, moves: Tensor | None = None) -> Tensor:
        """(..., in) -> (..., out), float32 or wider.

        Args:
            moves: a factor of the weights' gradient, (1,): 0 lets them stand still. None: 1.
        """
        rows = self._held(upcast(self.weight), moves)
        rows = F.normalize(rows, dim=1)
        if self.gain is not None:
            rows = rows * self._held(upcast(self.gain), moves)
        return F.linear(upcast(input), rows)

    @staticmethod
    def _held(weight: Tensor, moves: Tensor | None) -> Tensor:
        return weight if moves is None else torch.lerp(weight.detach(), weight, moves)
