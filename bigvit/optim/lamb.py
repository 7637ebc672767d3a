"""LAMB, for whole parameters."""

from collections.abc import Callable, Iterable
from typing import Any

import torch


class LAMB(torch.optim.Optimizer):
    """LAMB (arXiv:1904.00962, algorithm 2) as apex's FusedLAMB computes it: both moments are
    corrected for their start, decay is part of the update whose norm enters the trust ratio, and
    parameters without decay have a trust ratio of 1. The gradient is not clipped here.

    Each tensor given must be a whole parameter: the trust ratio is over all of it.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient."""
        assert closure is None, "a closure would run the model again"
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._step(p, group)

    def _step(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(p)
            state["exp_avg_sq"] = torch.zeros_like(p)
        assert p.grad is not None
        state["step"] += 1
        step, (beta1, beta2) = state["step"].item(), group["betas"]
        state["exp_avg"].lerp_(p.grad, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
        root = state["exp_avg_sq"].sqrt().div_((1 - beta2**step) ** 0.5).add_(group["eps"])
        update = state["exp_avg"].div(1 - beta1**step).div_(root)
        trust = 1.0
        if group["weight_decay"]:
            update.add_(p, alpha=group["weight_decay"])
            norms = p.norm(), update.norm()
            trust = torch.where((norms[0] > 0) & (norms[1] > 0), norms[0] / norms[1], 1.0)
        p.sub_(update.mul_(trust), alpha=group["lr"])
