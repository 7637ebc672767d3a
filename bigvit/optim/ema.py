"""Exponential moving average of the weights, kept where the optimizer keeps its moments: it is
sharded, offloaded, saved and loaded as they are, and never gathered."""

from typing import Any

import torch

EMA = "ema"
"""Its name among an optimizer's state."""


def average_weights(optimizer: torch.optim.Optimizer, decay: float) -> None:
    """From now on let every step end with ema = decay ema + (1 - decay) weight, in float32 (as
    timm's ModelEmaV3 without warm-up). A step that is skipped leaves it alone."""
    optimizer.defaults[EMA] = decay
    optimizer.register_step_post_hook(_average)


def averages(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer keeps an average."""
    return EMA in optimizer.defaults


@torch.no_grad()
def _average(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    weights = [
        p
        for group in optimizer.param_groups  # under ZeRO those of this call alone
        for p in group["params"]
        if EMA in optimizer.state[p]
    ]
    if weights:
        averaged = [optimizer.state[p][EMA] for p in weights]
        torch._foreach_lerp_(averaged, weights, 1 - optimizer.defaults[EMA])  # pyright: ignore[reportPrivateImportUsage]
