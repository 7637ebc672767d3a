"""What changes from update to update in an optimizer's groups."""

import torch

from bigvit.optim.ema import EMA
from bigvit.recipe import Rates


def set_rates(optimizer: torch.optim.Optimizer, rates: Rates) -> None:
    """Tell an optimizer of `parameter_groups` what its next step is to go by."""
    for group in optimizer.param_groups:
        still = rates.held and group["held"]
        group["lr"] = 0.0 if still else rates.lr * group["lr_scale"]
        if rates.weight_decay is not None and group["decayed"]:
            group["weight_decay"] = rates.weight_decay
    if rates.ema is not None:
        optimizer.defaults[EMA] = rates.ema
