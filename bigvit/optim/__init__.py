"""Optimizers: parameter groups, and LAMB. The schedule is `bigvit.recipe.Cosine`."""

from typing import Any

import torch

from bigvit.optim.lamb import LAMB
from bigvit.recipe import AdamW, Lamb, Optimizer

__all__ = ["LAMB", "MOMENTS", "build"]

MOMENTS = ("exp_avg", "exp_avg_sq")
"""State that both optimizers keep for every weight, beside the number of steps."""


def build(optim: Optimizer, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The recipe's optimizer over parameter groups that state their own weight decay.

    The learning rate starts at 0 and is set before every update: DeepSpeed takes a step on zero
    gradients while it builds its bf16 optimizer, which at any other rate would decay the weights.
    """
    match optim:
        case AdamW():
            fused = groups[0]["params"][0].is_cuda
            return torch.optim.AdamW(groups, lr=0.0, betas=optim.betas, eps=optim.eps, fused=fused)
        case Lamb():
            return LAMB(groups, lr=0.0, betas=optim.betas, eps=optim.eps)
