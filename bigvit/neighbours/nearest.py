"""Nearest by cosine, exactly: every pair is looked at, a piece at a time.

Shapes: Q queries, N images that are searched, k neighbours, C classes, D width.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

QUERIES, SEARCHED = 1024, 2**14  # of a piece
PAIRS = 2**25  # of a piece that is ranked whole
LOW = 0xFFFFFFFF


class Nearest(NamedTuple):
    """The k nearest of each query, the nearest first; of equals the first in order."""

    places: Tensor  # (Q, k) int64
    cosines: Tensor  # (Q, k) float32


def nearest(queries: Tensor, searched: Tensor, k: int) -> Nearest:
    """Args:
    queries, searched: (Q, D) and (N, D), of length 1.
    k: N at most.
    """
    found = [_nearest(piece, searched, k) for piece in queries.split(QUERIES)]
    return Nearest(*(torch.cat(each) for each in zip(*found, strict=True)))


def _nearest(queries: Tensor, searched: Tensor, k: int) -> Nearest:
    best = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for start in range(0, len(searched), SEARCHED):
        piece = searched[start : start + SEARCHED]
        places = torch.arange(start, start + len(piece), device=queries.device)
        keys = torch.cat([best, _key(queries @ piece.T, places)], dim=1)
        best = keys.topk(min(k, keys.shape[1]), dim=1).values
    ordered = (best >> 32).to(torch.int32)
    return Nearest(LOW - (best & LOW), _swapped(ordered).view(torch.float32))


def _key(cosines: Tensor, places: Tensor) -> Tensor:
    """Integers that are ordered as cosines (Q, N) are and, where these are equal, backwards as the
    places (N,): the largest of them are the nearest, with no tie."""
    bits = _swapped((cosines.float() + 0.0).view(torch.int32))  # -0 becomes 0
    return (bits.long() << 32) + (LOW - places)


def _swapped(bits: Tensor) -> Tensor:
    """float32's bits as integers of the same order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def votes(cosines: Tensor, classes: Tensor, count: int, temperature: float) -> Tensor:
    """The probabilities (Q, C) float64 of a weighted kNN classifier (thesis equation 2.6): of each
    class the sum of exp(cos / temperature) over the neighbours that are of it, of all classes 1.

    Args:
        cosines: (Q, k), the largest first.
        classes: (Q, k) int64, the neighbours'.
        count: of classes.
    """
    exponents = (cosines.double() - cosines[:, :1].double()) / temperature  # a factor of all
    weights = torch.zeros(len(cosines), count, dtype=torch.float64, device=cosines.device)
    weights.scatter_add_(1, classes, exponents.exp())
    return weights / weights.sum(dim=1, keepdim=True)


class Condition(NamedTuple):
    """What a ranking is conditioned by (thesis equation 2.5)."""

    odds: Tensor  # (Q, C) float64: log(p / (1 - p)) of each coarse class; infinite where p is 0, 1
    coarse: Tensor  # (N,) int64: the coarse class of what is searched

    def split(self, size: int) -> Iterator["Condition"]:
        """For so many queries at a time."""
        return (Condition(odds, self.coarse) for odds in self.odds.split(size))


def ranked(queries: Tensor, searched: Tensor, condition: Condition | None = None) -> Tensor:
    """All that is searched (Q, N), as it is ranked by cosine, of equals the first in order; or by
    cosine + log(p / (1 - p)), of equals, infinite ones too, the nearer by cosine first."""
    cosines = queries @ searched.T
    order = cosines.argsort(dim=1, descending=True, stable=True)
    if condition is None:
        return order
    scores = (cosines.double() + condition.odds[:, condition.coarse]).gather(1, order)
    return order.gather(1, scores.argsort(dim=1, descending=True, stable=True))


def nearest_conditioned(queries: Tensor, searched: Tensor, k: int, condition: Condition) -> Nearest:
    """As `nearest`, ranked by the condition; the cosines are those that they have."""
    each = max(1, PAIRS // len(searched))
    places = [
        ranked(piece, searched, part)[:, :k]
        for piece, part in zip(queries.split(each), condition.split(each), strict=True)
    ]
    found = torch.cat(places)
    cosines = [q @ searched[near].T for q, near in zip(queries, found, strict=True)]
    return Nearest(found, torch.stack(cosines))


def average_precisions(
    queries: Tensor,
    of: Tensor,
    searched: Tensor,
    classes: Tensor,
    condition: Condition | None = None,
) -> Iterator[Tensor]:
    """Of each query the average precision (float64) of all images that are searched, ranked by
    cosine and of equals the first in order: the mean, over the images of its class, of the share
    of its class among those up to there. nan where no image is of its class. A piece at a time.

    Args:
        of, classes: (Q,) and (N,) int64: the classes.
        condition: of the ranking; None: cosines alone.
    """
    each = max(1, PAIRS // len(searched))
    ranks = torch.arange(1, len(searched) + 1, dtype=torch.float64, device=queries.device)
    none = [None] * -(-len(queries) // each)
    parts = none if condition is None else condition.split(each)
    for piece, own, part in zip(queries.split(each), of.split(each), parts, strict=True):
        order = ranked(piece, searched, part)
        right = (classes[order] == own[:, None]).double()
        precisions = right.cumsum(dim=1) / ranks
        yield (precisions * right).sum(dim=1) / right.sum(dim=1)
