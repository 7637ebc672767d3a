# pyright: reportPrivateImportUsage=false
"""LAMB, exact also where an optimizer sees pieces of parameters."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bigvit.optim.ema import EMA
from bigvit.optim.state import MOMENTS, fresh_state

BLOCK = 4096  # elements summed in float32 before float64 takes over


class Segment(NamedTuple):
    """Elements [start, stop) of a flattened tensor: (a piece of) the slot-th parameter."""

    slot: int
    start: int
    stop: int


@dataclass(frozen=True)
class Shard:
    """What a tensor holds of several parameters, whose other pieces other ranks hold. Padding
    belongs to no segment."""

    segments: tuple[Segment, ...]
    parameters: int  # number of slots, the same on every rank
    slots: Tensor  # (segments,) int64, each one's, where the tensor lies
    total: Callable[[Tensor], Tensor]  # the sum of the ranks' tensors; a collective


class LAMB(torch.optim.Optimizer):
    """LAMB (arXiv:1904.00962, algorithm 2) as apex's FusedLAMB computes it: both moments are
    corrected for their start, decay is part of the update whose norm enters the trust ratio, and
    parameters without decay have a trust ratio of 1. The gradient is not clipped here. Defaults are
    apex's and timm's.

    A tensor is a whole parameter, unless `shards` says what it holds: then the norms of a trust
    ratio are summed over the ranks, in one collective a tensor. Gradients are overwritten, so that
    a step needs no memory of a parameter's size beside them.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        ema: float | None = None,
        compiled: bool = False,
    ) -> None:
        """Args:
        ema: decay of the weights' average, which `fresh_state` makes; updated while a weight is
            still in the cache.
        compiled: compile the elementwise work into one pass over memory; worth its half minute
            on a GPU, and for large models on a CPU.
        """
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        if ema is not None:
            self.defaults[EMA] = ema
        self.shards: dict[Tensor, Shard] = {}
        self._direction: Callable[..., Tensor] = direction
        self._apply: Callable[..., None] = apply
        if compiled:
            self._direction = torch.compile(direction, dynamic=True)
            self._apply = torch.compile(apply, dynamic=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient."""
        assert closure is None, "a closure would run the model again"
        sharded: dict[Tensor, Tensor] = {}  # sums of squares, which wait for the other ranks'
        rates: dict[Tensor, float] = {}
        for group in self.param_groups:
            stepped = [p for p in group["params"] if p.grad is not None]
            for p in stepped:
                fresh_state(self, p)["step"] += 1
            if not stepped:
                continue
            step = int(self.state[stepped[0]]["step"].numpy())  # it lies on the host
            # (m / c1) / (sqrt(v / c2) + eps) = m / (c1 (sqrt(v) / sqrt(c2) + eps))
            correction1, correction2 = (1 - beta**step for beta in group["betas"])
            corrections = correction1, correction2**-0.5
            if group["weight_decay"]:
                values = [*corrections, group["eps"], group["weight_decay"]]
                scalars = torch.tensor(values).unbind()  # on the host: nothing waits for them
                for p in stepped:
                    squares = self._directions(p, group, scalars)
                    if p in self.shards:
                        sharded[p], rates[p] = squares, group["lr"]
                    else:
                        self._move(p, group["lr"], squares)  # while it is in the cache
            else:
                self._step_plain(stepped, group, corrections)
        self._totals(sharded)
        for p, squares in sharded.items():
            self._move(p, rates[p], squares)

    def _directions(self, p: Tensor, group: dict[str, Any], scalars: tuple[Tensor, ...]) -> Tensor:
        """Turn a gradient into Adam's direction; returns the sums of squares of each of its
        segments, float64 (2, segments): of the weights, and of the direction."""
        state, gradient = self.state[p], p.grad
        assert gradient is not None
        tensors = p, gradient, state["exp_avg"], state["exp_avg_sq"]
        squares = [
            self._direction(*(t.view(-1)[start:stop] for t in tensors), group["betas"], scalars)
            for _, start, stop in self._segments(p)
        ]
        if not squares:  # a piece of nothing but padding
            return torch.zeros(2, 0, dtype=torch.float64, device=p.device)
        return torch.stack(squares, dim=1)

    def _segments(self, p: Tensor) -> tuple[Segment, ...]:
        shard = self.shards.get(p)
        return (Segment(0, 0, p.numel()),) if shard is None else shard.segments

    def _totals(self, sharded: dict[Tensor, Tensor]) -> None:
        """Make sums over this rank's segments those over whole parameters, in place: one collective
        for all tensors that share one."""
        together: dict[Callable[[Tensor], Tensor], list[Tensor]] = {}
        for p in sharded:
            together.setdefault(self.shards[p].total, []).append(p)
        for total, tensors in together.items():
            slots = torch.cat([self.shards[p].slots for p in tensors])
            squares = torch.cat([sharded[p] for p in tensors], dim=1)
            whole = squares.new_zeros(2, self.shards[tensors[0]].parameters)
            squares = total(whole.index_copy_(1, slots, squares)).index_select(1, slots)
            pieces = squares.split([sharded[p].shape[1] for p in tensors], dim=1)
            sharded.update(zip(tensors, pieces, strict=True))

    def _move(self, p: Tensor, lr: float, squares: Tensor) -> None:
        """Take a step in the direction that lies in the gradient, scaled by the trust ratios that
        follow from whole parameters' sums of squares (2, segments)."""
        weight, change = squares.sqrt()
        trust = torch.where((weight > 0) & (change > 0), weight / change, 1.0)
        rates = torch.as_tensor(lr, dtype=p.dtype) * trust.to(p.dtype)
        ema, share = self.state[p].get(EMA), 1 - self.defaults.get(EMA, 0.0)
        for (_, start, stop), rate in zip(self._segments(p), rates.unbind(), strict=True):
            pieces = [None if t is None else t.view(-1)[start:stop] for t in (p, p.grad, ema)]
            self._apply(*pieces, rate, share)

    def _step_plain(
        self, stepped: list[Tensor], group: dict[str, Any], corrections: tuple[float, float]
    ) -> None:
        """A step of parameters without decay, all at once: their trust ratio is 1."""
        beta1, beta2 = group["betas"]
        states = [self.state[p] for p in stepped]
        gradients = [p.grad for p in stepped if p.grad is not None]
        moments, squares = ([state[kind] for state in states] for kind in MOMENTS)
        torch._foreach_lerp_(moments, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        roots = gradients  # they are not needed any more
        torch._foreach_copy_(roots, squares)
        torch._foreach_sqrt_(roots)
        torch._foreach_mul_(roots, corrections[1])
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_addcdiv_(stepped, moments, roots, -group["lr"] / corrections[0])
        if EMA in self.defaults:
            averages = [state[EMA] for state in states]
            torch._foreach_lerp_(averages, stepped, 1 - self.defaults[EMA])


def direction(
    p: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    betas: tuple[float, float],
    scalars: tuple[Tensor, ...],
) -> Tensor:
    """Update both moments in place, and leave Adam's direction plus decay in the gradient.

    Args:
        p: and the other tensors, flat.
        scalars: c1, 1 / sqrt(c2), eps and the weight decay, as tensors so that none is compiled
            in; c1 and c2 correct the moments for their start.

    Returns:
        Sums of the squares of p and of the direction, float64 (2,).
    """
    correction1, root2, eps, decay = scalars
    exp_avg.lerp_(gradient, 1 - betas[0])
    exp_avg_sq.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    root = exp_avg_sq.sqrt().mul_(root2).add_(eps).mul_(correction1)
    torch.div(exp_avg, root, out=gradient).addcmul_(p, decay)
    return torch.stack([square_sum(p), square_sum(gradient)])


def apply(p: Tensor, update: Tensor, ema: Tensor | None, rate: Tensor, share: float) -> None:
    """p -= rate update, and move the average this share of the way to p, in place."""
    p.addcmul_(update, rate, value=-1)
    if ema is not None:
        ema.lerp_(p, share)


def square_sum(x: Tensor) -> Tensor:
    """Sum of the squares of a flat float32 tensor, float64 ().

    On a CPU torch's own norm of a million float32 elements is off by 1e-4, as it sums them one
    after another; in blocks it is good to 1e-8.
    """
    if torch.compiler.is_compiling():
        return x.double().square().sum()  # never whole in float64
    whole = len(x) // BLOCK * BLOCK
    norms = torch.linalg.vector_norm(x[:whole].view(-1, BLOCK), dim=1)
    return torch.cat([norms, torch.linalg.vector_norm(x[whole:])[None]]).double().square().sum()
