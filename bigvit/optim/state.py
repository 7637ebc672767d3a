"""An optimizer's state, made before its first step so that a checkpoint can fill it."""

from typing import Any

import torch

from bigvit.optim import MOMENTS


def fresh_state(optimizer: torch.optim.Optimizer, tensor: torch.Tensor) -> dict[str, Any]:
    """The state of one tensor; made, as zeros, where the optimizer has not yet stepped."""
    state = optimizer.state[tensor]
    if not state:
        on_device = optimizer.defaults.get("fused") or optimizer.defaults.get("capturable")
        where = tensor.device if on_device else torch.device("cpu")
        # a step counter of its own for every tensor: a shared one would count once a tensor
        state["step"] = torch.zeros((), dtype=torch.float32, device=where)
        for kind in MOMENTS:
            state[kind] = torch.zeros_like(tensor, memory_format=torch.preserve_format)
    return state


def steps(optimizer: torch.optim.Optimizer) -> int:
    """Steps taken, the same for every tensor."""
    counts = {int(state["step"]) for state in optimizer.state.values()}
    assert len(counts) <= 1, f"tensors of one optimizer took {sorted(counts)} steps"
    return counts.pop() if counts else 0


def set_steps(optimizer: torch.optim.Optimizer, count: int) -> None:
    """Let every tensor have taken this many steps."""
    for state in optimizer.state.values():
        state["step"].fill_(count)
