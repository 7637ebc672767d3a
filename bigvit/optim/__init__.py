"""Optimizers: parameter groups, LAMB, Muon, SGD, averages. Schedules are in `bigvit.recipe`."""

from typing import Any

import torch

from bigvit.optim.ema import EMA, average_weights
from bigvit.optim.lamb import LAMB, Segment, Shard
from bigvit.optim.muon import MUON
from bigvit.optim.rates import set_rates
from bigvit.optim.sgd import MomentumSGD
from bigvit.recipe import SGD, AdamW, Lamb, Muon, Optimizer

__all__ = ["EMA", "LAMB", "MUON", "MomentumSGD", "Segment", "Shard", "build", "set_rates"]


def build(
    optim: Optimizer,
    ema: float | None,
    groups: list[dict[str, Any]],
    fused: bool = False,
    compiled: bool = False,
) -> torch.optim.Optimizer:
    """The recipe's optimizer over parameter groups that state their own weight decay.

    The learning rate starts at 0 and is set before every update: DeepSpeed takes a step on zero
    gradients while it builds its bf16 optimizer, which at any other rate would decay the weights.

    Args:
        ema: decay of the weights' average, which `set_rates` may change; None for none.
        groups: as `parameter_groups` makes them.
        fused: AdamW and SGD do the elementwise work in one pass, Muon's AdamW too.
        compiled: LAMB does.
    """
    match optim:
        case AdamW():
            adamw = torch.optim.AdamW(groups, lr=0.0, betas=optim.betas, eps=optim.eps, fused=fused)
            if ema is not None:
                average_weights(adamw, ema)
            return adamw
        case Lamb():
            return LAMB(
                groups, lr=0.0, betas=optim.betas, eps=optim.eps, ema=ema, compiled=compiled
            )
        case Muon():
            muon = MUON(groups, optim, fused=fused)
            if ema is not None:
                average_weights(muon, ema)
            return muon
        case SGD():
            plain = MomentumSGD(groups, optim.momentum, optim.nesterov, fused=fused)
            if ema is not None:
                average_weights(plain, ema)
            return plain
