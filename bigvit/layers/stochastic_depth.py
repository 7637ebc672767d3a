"""Stochastic depth (arXiv:1603.09382): drawn on the host with the batch, applied as a factor.

A dropped sample's branch counts 0, a kept one's 1 / (share kept), so that the expectation is that
of the whole branch. Nothing is drawn in a forward pass.
"""

import numpy as np
import torch
from torch import Tensor

from bigvit import random
from bigvit.recipe import StochasticDepth

Span = tuple[int, int]


def draw(depth: StochasticDepth, branches: int, seed: int, number: int, span: Span) -> Tensor:
    """Factors of each residual branch for the samples at positions [start, stop) of a batch.

    In groups: of every `group` consecutive samples a fixed number is kept, by an order drawn anew
    for each branch. By symmetry a sample is kept with the same probability as when each is dropped
    alone, and the sum over a group varies less.

    Args:
        depth: rate and group.
        branches: residual branches of the model.
        seed: the recipe's.
        number: of the global batch.
        span: positions in the global batch; whole groups where samples are kept by groups.

    Returns:
        (branches, stop - start) float32.
    """
    start, stop = span
    if depth.rate == 0:
        return torch.ones(branches, stop - start)
    size = depth.group
    drawn = range(start // size, -(-stop // size))
    if not depth.grouped:
        u = np.concatenate(
            [
                random.uniform(branches * size, "drop path", seed, number, group).reshape(
                    branches, size
                )
                for group in drawn
            ],
            axis=1,
        )[:, start - drawn.start * size :][:, : stop - start]
        return torch.from_numpy((u >= depth.rate) / np.float64(1 - depth.rate)).float()
    assert start % size == 0 and stop % size == 0, "the layout cuts batches into whole groups"
    kept = np.array(depth.kept(branches))[:, None]
    factors = np.empty((branches, stop - start))
    for i, group in enumerate(drawn):
        bits = random.bits(branches * size, "drop path", seed, number, group).reshape(
            branches, size
        )
        rank = bits.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
        factors[:, i * size : (i + 1) * size] = np.where(rank < kept, size / kept, 0)
    return torch.from_numpy(factors).float()


def scale_branch(branch: Tensor, factors: Tensor | None) -> Tensor:
    """A residual branch (B, N, D) times its samples' factors (B,); None keeps it as it is."""
    return branch if factors is None else branch * factors.to(branch.dtype)[:, None, None]
