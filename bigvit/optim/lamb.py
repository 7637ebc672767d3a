"""LAMB, exact also where an optimizer sees pieces of parameters."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bigvit.optim.ema import EMA
from bigvit.optim.state import fresh_state

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
    total: Callable[[Tensor], Tensor]  # the sum of the ranks' tensors; a collective


class LAMB(torch.optim.Optimizer):
    """LAMB (arXiv:1904.00962, algorithm 2) as apex's FusedLAMB computes it: both moments are
    corrected for their start, decay is part of the update whose norm enters the trust ratio, and
    parameters without decay have a trust ratio of 1. The gradient is not clipped here.

    A tensor is a whole parameter, unless `shards` says what it holds: then the norms of a trust
    ratio are summed over the ranks, in one collective a tensor. Gradients are overwritten, so that
    a step needs no memory of a parameter's size beside them.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float = 0.0,
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
        self._direction: Callable[..., None] = direction
        self._apply: Callable[..., None] = apply
        if compiled:
            self._direction = torch.compile(direction, dynamic=True)
            self._apply = torch.compile(apply, dynamic=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient."""
        assert closure is None, "a closure would run the model again"
        for group in self.param_groups:
            corrections: list[Tensor] = []
            stepped = [p for p in group["params"] if p.grad is not None]
            for p in stepped:
                fresh_state(self, p)["step"] += 1
            if stepped:
                step = self.state[stepped[0]]["step"].double().cpu()
                corrections = [1 - beta**step for beta in group["betas"]]
            for p in stepped:
                self._step(p, group, corrections)

    def _step(self, p: Tensor, group: dict[str, Any], corrections: Sequence[Tensor]) -> None:
        state, gradient, decay = self.state[p], p.grad, group["weight_decay"]
        assert gradient is not None
        moments = state["exp_avg"], state["exp_avg_sq"]
        self._direction(p, gradient, *moments, group["betas"], *corrections, group["eps"], decay)
        shard, lr = self.shards.get(p), torch.as_tensor(group["lr"], dtype=p.dtype)
        segments, rates = (Segment(0, 0, p.numel()),), lr[None]
        if decay:
            segments = segments if shard is None else shard.segments
            rates = lr * self._trust(p, gradient, segments, shard)
        ema, share = state.get(EMA), 1 - self.defaults.get(EMA, 0.0)
        for (_, start, stop), rate in zip(segments, rates.unbind(), strict=True):
            tensors = [None if t is None else t.view(-1)[start:stop] for t in (p, gradient, ema)]
            self._apply(*tensors, rate, share)

    def _trust(
        self, p: Tensor, update: Tensor, segments: Sequence[Segment], shard: Shard | None
    ) -> Tensor:
        """Trust ratios of the parameters that the segments are of, (segments,)."""
        pieces = [[t.view(-1)[start:stop] for _, start, stop in segments] for t in (p, update)]
        squares = torch.stack([square_sums(views) for views in pieces])
        if shard is not None:
            slots = torch.tensor([segment.slot for segment in segments], device=p.device)
            shape = (2, shard.parameters)
            whole = torch.zeros(shape, dtype=torch.float64, device=p.device)
            squares = shard.total(whole.index_copy_(1, slots, squares))[:, slots]
        weight, change = squares.sqrt()
        return torch.where((weight > 0) & (change > 0), weight / change, 1.0).to(p.dtype)


def direction(
    p: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    betas: tuple[float, float],
    correction1: Tensor,
    correction2: Tensor,
    eps: float,
    decay: float,
) -> None:
    """Update both moments in place, and leave Adam's direction plus decay in the gradient."""
    exp_avg.lerp_(gradient, 1 - betas[0])
    exp_avg_sq.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    root = (exp_avg_sq / correction2).sqrt_().add_(eps)
    torch.div(exp_avg, correction1, out=gradient).div_(root)
    if decay:
        gradient.add_(p, alpha=decay)


def apply(p: Tensor, update: Tensor, ema: Tensor | None, rate: Tensor, share: float) -> None:
    """p -= rate update, and move the average this share of the way to p, in place."""
    p.addcmul_(update, rate, value=-1)
    if ema is not None:
        ema.lerp_(p, share)


def square_sums(tensors: Sequence[Tensor]) -> Tensor:
    """Sums of the squares of flat float32 tensors, float64 (tensors,).

    On a CPU torch's own norm of a million float32 elements is off by 1e-4, as it sums them one
    after another; in blocks it is good to 1e-8.
    """
    if not tensors:
        return torch.zeros(0, dtype=torch.float64)
    if tensors[0].is_cuda:
        return torch.stack(torch._foreach_norm(list(tensors))).double().square()  # pyright: ignore[reportPrivateImportUsage]
    sums = []
    for tensor in tensors:
        blocks = len(tensor) // BLOCK
        body, rest = tensor[: blocks * BLOCK].view(blocks, BLOCK), tensor[blocks * BLOCK :]
        parts = [torch.linalg.vector_norm(body, dim=1), torch.linalg.vector_norm(rest)[None]]
        sums.append(torch.cat(parts).double().square().sum())
    return torch.stack(sums)
