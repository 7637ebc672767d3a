"""An optimizer's state, made before its first step so that a checkpoint can fill it."""

from typing import Any

import torch
from torch import Tensor

from bigvit.optim.ema import EMA, averages

MOMENTS = ("exp_avg", "exp_avg_sq")
"""State that optimizers keep for every weight, beside the number of steps; SGD, and Muon of its
matrices, the first alone."""


def moments(optimizer: torch.optim.Optimizer, tensor: Tensor) -> tuple[str, ...]:
    """Those that an optimizer keeps of a tensor."""
    one = getattr(optimizer, "one_moment", False) or tensor in getattr(optimizer, "matrices", ())
    return MOMENTS[:1] if one else MOMENTS


def kinds(optimizer: torch.optim.Optimizer, tensor: Tensor) -> dict[str, Tensor]:
    """What a checkpoint holds of a tensor: the weight itself, its moments and its average."""
    state = fresh_state(optimizer, tensor)
    kept = moments(optimizer, tensor)
    kept = (*kept, EMA) if averages(optimizer) else kept
    return {"weight": tensor.detach(), **{kind: state[kind] for kind in kept}}


def fresh_state(optimizer: torch.optim.Optimizer, tensor: Tensor) -> dict[str, Any]:
    """The state of one tensor. Where the optimizer has not yet stepped, it is made: moments as
    zeros, the average as the weight."""
    state = optimizer.state[tensor]
    if not state:
        on_device = optimizer.defaults.get("fused") or optimizer.defaults.get("capturable")
        where = tensor.device if on_device else torch.device("cpu")
        # a step counter of its own for every tensor: a shared one would count once a tensor
        state["step"] = torch.zeros((), dtype=torch.float32, device=where)
        for kind in moments(optimizer, tensor):
            state[kind] = torch.zeros_like(tensor, memory_format=torch.preserve_format)
    if averages(optimizer) and EMA not in state:
        state[EMA] = tensor.detach().clone()
    return state


def steps(optimizer: torch.optim.Optimizer) -> int:
    """Steps taken, the same for every tensor."""
    counts = {int(state["step"]) for state in optimizer.state.values() if state}
    assert len(counts) <= 1, f"tensors of one optimizer took {sorted(counts)} steps"
    return counts.pop() if counts else 0


def set_steps(optimizer: torch.optim.Optimizer, count: int) -> None:
    """Let every tensor have taken this many steps."""
    for state in optimizer.state.values():
        if state:
            state["step"].fill_(count)
