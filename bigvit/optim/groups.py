"""Parameter groups: matrices are decayed; vectors, class tokens and positions are not."""

from collections.abc import Iterable
from typing import Any

from torch import nn


def parameter_groups(
    parameters: Iterable[tuple[str, nn.Parameter]], no_decay: set[str], weight_decay: float
) -> list[dict[str, Any]]:
    """Groups for an optimizer, each with its `weight_decay` and `lr_scale`.

    Args:
        parameters: named, in the model's order; frozen ones are left out.
        no_decay: names of matrices that are not decayed.
        weight_decay: of the decayed group.
    """
    trained = [(name, p) for name, p in parameters if p.requires_grad]
    decayed = [p for name, p in trained if p.ndim >= 2 and name not in no_decay]
    kept = [p for name, p in trained if p.ndim < 2 or name in no_decay]
    groups = [
        {"params": decayed, "weight_decay": weight_decay, "lr_scale": 1.0},
        {"params": kept, "weight_decay": 0.0, "lr_scale": 1.0},
    ]
    return [group for group in groups if group["params"]]
