# pyright: reportPrivateImportUsage=false
"""SGD with momentum, whose only moment is there before the first step."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.sgd import sgd

from bigvit.optim.state import fresh_state


class MomentumSGD(torch.optim.Optimizer):
    """torch.optim.SGD without dampening, bit for bit: momentum begins at 0, so that the first step
    leaves the gradient there, as torch's does. It is called `exp_avg`, as other optimizers' first
    moment is, and is kept for a momentum of 0, too.
    """

    one_moment = True

    def __init__(
        self, params: Iterable[Any], momentum: float, nesterov: bool, fused: bool = False
    ) -> None:
        """Args: fused: the elementwise work is done in one pass."""
        super().__init__(params, {"lr": 0.0, "weight_decay": 0.0, "fused": fused})
        self.momentum, self.nesterov = momentum, nesterov

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient."""
        assert closure is None, "a closure would run the model again"
        for group in self.param_groups:
            stepped = [p for p in group["params"] if p.grad is not None]
            if not stepped:
                continue
            states = [fresh_state(self, p) for p in stepped]
            torch._foreach_add_([state["step"] for state in states], 1)
            sgd(
                stepped,
                [p.grad for p in stepped],
                [state["exp_avg"] for state in states],
                fused=self.defaults["fused"] or None,  # None: what torch.optim.SGD would choose
                weight_decay=group["weight_decay"],
                momentum=self.momentum,
                lr=group["lr"],
                dampening=0.0,
                nesterov=self.nesterov,
                maximize=False,
            )
