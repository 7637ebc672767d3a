"""What is computed in float32 whatever the weights' own type."""

import torch
from torch import Tensor


def upcast(x: Tensor) -> Tensor:
    """x in float32, or in its own type where that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
