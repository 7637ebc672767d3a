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

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) -> (..., out), float32 or wider."""
        rows = F.normalize(upcast(self.weight), dim=1)
        if self.gain is not None:
            rows = rows * upcast(self.gain)
        return F.linear(upcast(input), rows)
