"""Stochastic depth (arXiv:1603.09382): drawn on the host with the batch, nothing in a forward pass.

Kept by groups, a dropped sample's branch is not computed: the branch works on the kept samples
alone, and their number is fixed, so that shapes are static. Dropped one by one, its branch counts
0. A kept one's counts 1 / (share kept) either way, so that the expectation is the whole branch's.

Shapes: L residual branches of the model, B samples of a micro-batch, n kept ones, T tokens, D
width.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bigvit import keyed_random
from bigvit.layers.batch_norm import recomputing
from bigvit.recipe import StochasticDepth

Span = tuple[int, int]
Branch = Callable[[Tensor], Tensor]


class Order(NamedTuple):
    """Samples by groups, of each branch."""

    kept: Tensor  # (L, B) int64: the kept ones' positions in the span, ascending, then the others'


class Factors(NamedTuple):
    """What each sample counts in each branch."""

    factors: Tensor  # (L, B) float32, 0 where it is dropped


Dropped = Order | Factors | None
"""All that is drawn for a micro-batch; None: nothing is dropped."""


class Kept(NamedTuple):
    """The samples that a branch is computed for."""

    samples: Tensor  # (n,) int64, ascending positions in the micro-batch
    scale: float  # what their branch counts


Drop = Kept | Tensor | None
"""What a branch drops: all but the kept samples, by factors (B,), or nothing."""


def draw(
    depth: StochasticDepth, branches: int, seed: int, number: int, span: Span, views: int = 0
) -> Dropped:
    """What each residual branch drops of the samples at positions [start, stop) of a batch.

    In groups: of every `group` consecutive samples a fixed number is kept, by an order drawn anew
    for each branch. By symmetry a sample is kept with the same probability as when each is dropped
    alone, and the sum over a group varies less.

    Args:
        depth: rate and group.
        branches: residual branches of the model, L.
        seed: the recipe's.
        number: of the global batch.
        span: positions in the global batch; whole groups where samples are kept by groups.
        views: the group of views that they are of; 0: the images themselves.

    Returns:
        Nothing at rate 0; the order where samples are kept by groups, else factors.
    """
    if depth.rate == 0:
        return None
    if not depth.grouped:
        return Factors(_factors(depth, branches, seed, number, span, views))
    start, stop = span
    size = depth.group
    assert start % size == 0 and stop % size == 0, "the layout cuts batches into whole groups"
    kept = np.array(depth.kept(branches))[:, None]
    dropped = np.empty((branches, stop - start), dtype=bool)
    for i, group in enumerate(range(start // size, stop // size)):
        key = _key(views, seed, number, group)
        bits = keyed_random.bits(branches * size, *key).reshape(branches, size)
        rank = bits.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
        dropped[:, i * size : (i + 1) * size] = rank >= kept
    return Order(torch.from_numpy(dropped.argsort(axis=1, kind="stable")))


def _key(views: int, seed: int, number: int, group: int) -> tuple[str | int, ...]:
    own = ("views", views) if views else ()
    return "drop path", *own, seed, number, group


def _factors(
    depth: StochasticDepth, branches: int, seed: int, number: int, span: Span, views: int
) -> Tensor:
    start, stop = span
    size = depth.group
    drawn = range(start // size, -(-stop // size))
    u = np.concatenate(
        [
            keyed_random.uniform(branches * size, *_key(views, seed, number, group)).reshape(
                branches, size
            )
            for group in drawn
        ],
        axis=1,
    )[:, start - drawn.start * size :][:, : stop - start]
    rates_Lx1 = np.array(depth.rates(branches))[:, None]
    return torch.from_numpy((u >= rates_Lx1) / (1 - rates_Lx1)).float()


def drops(depth: StochasticDepth, branches: int, draws: Dropped) -> list[Drop]:
    """What `draw` made, branch by branch."""
    match draws:
        case None:
            return [None] * branches
        case Factors(factors_LB):
            return list(factors_LB.unbind())
        case Order(kept_LB):
            groups = kept_LB.shape[1] // depth.group
            pairs = zip(kept_LB.unbind(), depth.kept(branches), strict=True)
            return [Kept(row[: k * groups], depth.group / k) for row, k in pairs]


def add_branches(
    x: Tensor, branches: Iterable[Branch], drop: Sequence[Drop], recompute: bool = False
) -> Tensor:
    """x + the sum of branches that read the same x, each with what it drops; may change x.

    Args:
        x: (B, T, D), the residual stream.
        branches: of some samples (n, T, D) -> (n, T, D), in the stream's type.
        drop: one a branch, all of one kind.
        recompute: keep a branch's input alone for backward, and compute it once more there.
    """
    if recompute:
        branches = [partial(recomputed, branch) for branch in branches]
    if not isinstance(drop[0], Kept):
        outputs = [branch(x) for branch in branches]
        return x + reduce(add, map(_scaled, outputs, drop))
    kept = [each for each in drop if isinstance(each, Kept)]
    outputs = [
        branch(x.index_select(0, each.samples)) for branch, each in zip(branches, kept, strict=True)
    ]
    for output, each in zip(outputs, kept, strict=True):
        if torch.compiler.is_compiling():
            # a compiled block may keep x, to gather from it again: x must not change after it
            x = x.index_add(0, each.samples, output, alpha=each.scale)
        else:
            x = _AddKept.apply(x, output, each.samples, each.scale)
    return x


class _AddKept(torch.autograd.Function):
    """x[samples] += scale output, in place; index_add_ would keep the output for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, output: Tensor, samples: Tensor, scale: float) -> Tensor:
        ctx.mark_dirty(x)
        ctx.save_for_backward(samples)
        ctx.scale = scale
        return x.index_add_(0, samples, output, alpha=scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (samples,) = gradients, ctx.saved_tensors
        return gradient, gradient.index_select(0, samples) * ctx.scale, None, None


def recomputed(branch: Branch, x: Tensor) -> Tensor:
    """branch(x), of which x alone is kept for backward, to compute it once more there."""
    # a compiled block takes its statistics in forward alone, and no context
    once: dict[str, Any] = {} if torch.compiler.is_compiling() else {"context_fn": _once}
    # nothing is drawn in a forward pass: there is no generator's state to keep
    return checkpoint(branch, x, use_reentrant=False, preserve_rng_state=False, **once)


def _once() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), recomputing()


def _scaled(output: Tensor, drop: Drop) -> Tensor:
    """A branch (B, T, D) times its samples' factors, if any."""
    return output * drop.to(output.dtype)[:, None, None] if isinstance(drop, Tensor) else output
