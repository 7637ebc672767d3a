"""MLPs behind a trunk that training alone needs: in float32 whatever the weights' type.

Shapes: R rows, D width.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from bigvit.layers.batch_norm import UpcastBatchNorm
from bigvit.layers.unit_rows import UnitRows
from bigvit.layers.upcast_linear import UpcastLinear
from bigvit.recipe import Dino


class Hidden(nn.Module):
    """A linear layer, BatchNorm if there is one, and what it is activated by."""

    def __init__(self, inputs: int, outputs: int, norm: str, activation: str) -> None:
        super().__init__()
        self.linear = UpcastLinear(inputs, outputs)
        self.norm = UpcastBatchNorm(outputs) if norm == "batch" else None
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """(R, in) -> (R, out), float32 or wider."""
        x = self.linear(x)
        x = x if self.norm is None else self.norm(x)
        return F.relu(x) if self.activation == "relu" else F.gelu(x)


class Mlp(nn.Module):
    """Hidden layers, none or several, and a linear one."""

    def __init__(
        self, inputs: int, hidden: Sequence[int], outputs: int, norm: str, activation: str
    ) -> None:
        """Args:
        hidden: widths.
        norm: "batch" or "none".
        activation: "relu" or "gelu".
        """
        super().__init__()
        widths = [inputs, *hidden]
        self.hidden = nn.ModuleList(Hidden(*pair, norm, activation) for pair in pairwise(widths))
        self.last = UpcastLinear(widths[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out), float32 or wider; statistics are of all rows."""
        shape = x.shape[:-1]
        x = x.flatten(0, -2)
        for layer in self.hidden:
            x = layer(x)
        return self.last(x).unflatten(0, shape)


class DinoHead(Mlp):
    """DINO's head (arXiv:2104.14294, section 3.1 and appendix C): an MLP with GELU to a
    bottleneck, l2-normalised, and a last layer of unit rows."""

    def __init__(self, dino: Dino, dim: int) -> None:
        hidden = [dino.hidden_dim] * dino.hidden_layers
        super().__init__(dim, hidden, dino.bottleneck_dim, dino.norm, "gelu")
        self.prototypes = UnitRows(dino.bottleneck_dim, dino.outputs, dino.gain == "trained")

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., K), float32 or wider; statistics are of all rows."""
        return self.prototypes(F.normalize(super().forward(x), dim=-1))
