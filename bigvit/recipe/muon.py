"""Muon as plain values, and who orthogonalises what. No torch here."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from bigvit.recipe.bounds import Bound, Decay, Epsilon, Factor, PeakLr, ShareBelow1

__all__ = ["Muon"]

NEAR = 0.5
"""Share of the most elements of a matrix that one rank has, from which on another may own it."""


@dataclass(frozen=True)
class Muon:
    """Muon (Jordan et al., kellerjordan.github.io/posts/muon; arXiv:2502.16982): the momentum of
    each hidden matrix is brought near the closest orthogonal one by Newton-Schulz. AdamW has the
    rest: embeddings, heads, vectors, tokens and positions. A convolution is a matrix of outputs x
    (inputs, height, width), as Jordan flattens it.

    What is published of fused queries, keys and values differs: Jordan writes that each by itself
    is better ("split"); torch.optim.Muon and timm's take a matrix as it is stored ("whole").
    """

    lr: PeakLr  # peak learning rate of hidden matrices, before `adjust_lr`; never rescaled
    momentum: ShareBelow1[float]  # share of the mean of gradients that stays from update to update
    nesterov: bool  # whether the gradient is moved towards that mean, not replaced by it
    ns_steps: Annotated[int, Bound(1, 99)]  # Newton-Schulz iterations
    coefficients: Factor[tuple[float, float, float]]  # a, b, c of a X + b (X X') X + c (X X')^2 X
    ns_precision: Literal["fp32", "bf16"]  # of the iterations
    # factor of lr: sqrt(max(1, rows / columns)) of Jordan's, 0.2 sqrt(max(rows, columns)) of
    # arXiv:2502.16982, equation 4, with which AdamW's lr and weight decay fit
    adjust_lr: Literal["original", "match_rms_adamw"]
    qkv: Literal["split", "whole"]  # fused queries, keys and values: three matrices, or one
    weight_decay: Decay[
        float
    ]  # of matrices, decoupled; vectors, positions and tokens are never decayed
    adamw_lr_ratio: Annotated[float, Bound(0.0, 1e6)]  # AdamW's learning rate over `lr`
    betas: ShareBelow1[tuple[float, float]]  # AdamW's decay of the first and second moment
    eps: Epsilon  # AdamW's, added to the root of the second moment

    def adjusted(self, rows: int, columns: int) -> float:
        """The factor of the learning rate of a matrix."""
        if self.adjust_lr == "original":
            return math.sqrt(max(1.0, rows / columns))
        return 0.2 * math.sqrt(max(rows, columns))

    def flops(self, rows: int, columns: int) -> int:
        """Of all iterations on a matrix, a multiplication and an addition each."""
        short, long = sorted((rows, columns))
        return self.ns_steps * 2 * short * short * (2 * long + short)


def parts_of(name: str) -> int:
    """How many matrices lie above each other in a weight, by the name of its layer."""
    layer = name.split(".")[-2] if name.endswith(".weight") else name.split(".")[-1]
    return {"qkv": 3, "kqv": 3, "in_proj_weight": 3, "kv": 2}.get(layer, 1)


def owners(shapes: Sequence[tuple[int, int]], held: Sequence[Sequence[int]]) -> list[int]:
    """The rank that orthogonalises each matrix: of those that have about as much of it as any, the
    one with the least to do; the largest matrices are given first.

    Args:
        shapes: (rows, columns) of each matrix.
        held: elements of each matrix that each rank has.
    """
    work = [min(shape) * math.prod(shape) for shape in shapes]
    load = [0] * (len(held[0]) if held else 0)
    found = [0] * len(shapes)
    for i in sorted(range(len(shapes)), key=lambda i: -work[i]):
        most = max(held[i])
        near = [rank for rank, size in enumerate(held[i]) if size >= NEAR * most]
        found[i] = min(near, key=load.__getitem__)
        load[found[i]] += work[i]
    return found
