"""How far two trained models are apart."""

from collections.abc import Mapping

import torch


def apart(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> float:
    """Relative L2 difference of whole models."""
    one, other = (torch.cat([each[n].double().flatten() for n in sorted(a)]) for each in (a, b))
    return float((one - other).norm() / one.norm())
