"""A linear layer that is computed in float32 whatever the weights' own type."""

import torch.nn.functional as F
from torch import Tensor, nn

from bigvit.layers.precision import upcast


class UpcastLinear(nn.Linear):
    """x W^T + b in float32, or in the type of x where that is wider."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) -> (..., out), float32 or wider."""
        return F.linear(upcast(input), upcast(self.weight), upcast(self.bias))
