"""What multiplies a residual branch."""

import torch
from torch import Tensor, nn

from bigvit.layers.precision import upcast
from bigvit.recipe import (
    BranchScalar,
    FixedLayerScale,
    Fixup,
    LayerScale,
    Residual,
    TFixup,
    UniformLayerScale,
    Unscaled,
)


def factors(residual: Residual, dim: int) -> nn.Parameter | None:
    """A branch's factors, without meaningful values: (D,), one (1,), or none."""
    match residual:
        case LayerScale() | UniformLayerScale():
            return nn.Parameter(torch.empty(dim))
        case FixedLayerScale():
            return nn.Parameter(torch.empty(dim), requires_grad=False)
        case BranchScalar() | Fixup() | TFixup():
            return nn.Parameter(torch.empty(1))
        case Unscaled():
            return None


def initial_factors(residual: Residual, value: Tensor, generator: torch.Generator) -> Tensor:
    """The factors' initial values, written into `value`."""
    match residual:
        case LayerScale() | BranchScalar():
            return value.fill_(residual.init)
        case UniformLayerScale():
            return value.uniform_(0, 2 * residual.mean, generator=generator)
        case FixedLayerScale() | Fixup() | TFixup() | Unscaled():
            return value.fill_(1)


def scaled(x: Tensor, factors: Tensor | None) -> Tensor:
    """A branch (..., D), in the weights' type, times its factors: float32 or wider, as the residual
    stream is, for 1e-6 of a branch is below bf16's steps (thesis, equations 3.6 and 3.7)."""
    if factors is None:
        return upcast(x)
    return x * upcast(factors)  # keeps x in its own type for backward
