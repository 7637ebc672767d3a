"""Embeddings of all training images (thesis section 2.3.1, "Memory of embeddings"), spread over
ranks, and the kNN loss on them. In float32.

Shapes: B images of this rank's micro-batch, G of all ranks', N training images, D numbers of an
embedding.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from bigvit import keyed_random

AT_ONCE = 2**24
"""Cosines that are in memory at once."""


class Memory:
    """This rank's rows, a contiguous block of them. They are not normalised."""

    def __init__(self, images: int, dim: int, seed: int) -> None:
        self.images, self.dim, self.seed = images, dim, seed
        self.noted: list[tuple[Tensor, Tensor]] = []  # numbers (G,) and embeddings (G, D)

    def meet(self, rank: int, world: int, device: torch.device) -> None:
        """Make room for this rank's rows."""
        self.world = world
        self.start = rank * self.images // world
        count = (rank + 1) * self.images // world - self.start
        # the last row takes what is of no row here, so that the host need not look
        self.room = torch.zeros(count + 1, self.dim, device=device)

    @property
    def rows(self) -> Tensor:
        """(rows, D), of images from `start` on."""
        return self.room[:-1]

    def fresh(self, start: int, stop: int) -> Tensor:
        """Numbers [start, stop) of the flattened memory at first: uniform, of a norm near 1, as in
        SNCA's code (microsoft/snca.pytorch); each image's are of (seed, image) alone."""
        first, last = start // self.dim, -(-stop // self.dim)
        each = [
            keyed_random.uniform(self.dim, "grafit memory", self.seed, image)
            for image in range(first, last)
        ]
        flat = np.concatenate([np.zeros(0), *each])[start - first * self.dim :][: stop - start]
        return torch.from_numpy((2 * flat - 1) * np.sqrt(3 / self.dim)).float()

    def loss(self, u: Tensor, ids: Tensor, classes: Tensor, sigma: float) -> Tensor:
        """The kNN loss (B,) of normalised embeddings (equations 2.2, 2.3), and note them.
        Collective.

        -log of the share that images of its class have of the neighbours' weights, the image itself
        left out; 0 where no other image is of its class, as SNCA's code has it.

        Args:
            u: (B, D), normalised.
            ids: (B,) their images' numbers.
            classes: (N,) of all training images.
        """
        every_u, every_id = self._gathered(u.detach()), self._gathered(ids)
        self.noted.append((every_id, every_u))
        return _Neighbours.apply(u, every_u, every_id, classes, sigma, self)

    def take_over(self) -> None:
        """m <- (m + g) / 2 for each image noted, once; of one noted several times (copies in a
        batch) g is the mean."""
        if not self.noted:
            return
        ids, u = (torch.cat(each) for each in zip(*self.noted, strict=True))
        self.noted = []
        same = ids[:, None] == ids
        first = same.int().argmax(dim=1)  # the first place of each image
        sums = torch.zeros_like(u).index_add_(0, first, u)
        g = sums / same.sum(dim=1, keepdim=True)
        count = len(self.room) - 1
        row = ids - self.start
        here = (row >= 0) & (row < count) & (first == torch.arange(len(ids), device=ids.device))
        row = torch.where(here, row, count)
        self.room[row] = (self.room[row] + g) / 2

    def forget(self) -> None:
        """Nothing was noted."""
        self.noted = []

    def chunks(self, queries: int) -> Iterator[tuple[int, Tensor]]:
        """Rows, normalised, some at a time, each with the number of the first."""
        at_once = max(1, AT_ONCE // queries)
        for start in range(0, len(self.room) - 1, at_once):
            stop = min(start + at_once, len(self.room) - 1)
            yield self.start + start, F.normalize(self.room[start:stop], dim=1)

    def _gathered(self, mine: Tensor) -> Tensor:
        """All ranks' (B, ...) -> (G, ...), in the order of ranks."""
        if self.world == 1:
            return mine
        every = mine.new_empty(self.world * len(mine), *mine.shape[1:])
        dist.all_gather_into_tensor(every, mine.contiguous())
        return every


class _Neighbours(torch.autograd.Function):
    """Each rank's rows are weighed for all queries; what belongs together is then added up. The
    gradient is made beside the value, so that backward needs no collective."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, *given: Any) -> Tensor:
        every_u, ids, classes, sigma, memory = given
        each = [
            torch.stack([s.logsumexp(1), s.masked_fill(~same, -torch.inf).logsumexp(1)])
            for s, same, _ in _weighed(every_u, ids, classes, sigma, memory)
        ]
        none = every_u.new_full((2, len(ids)), -torch.inf)
        logs = torch.stack([none, *each]).logsumexp(0)
        if memory.world > 1:
            logs = memory._gathered(logs[None]).logsumexp(0)
        of_all, of_same = logs
        lone = of_same == -torch.inf
        slope = torch.zeros_like(every_u)
        for s, same, v in _weighed(every_u, ids, classes, sigma, memory):
            p = (s - of_all[:, None]).exp()
            slope += (p - torch.where(same, (s - of_same[:, None]).exp(), 0)) @ v / sigma
        if memory.world > 1:
            dist.all_reduce(slope)
        slope.masked_fill_(lone[:, None], 0)
        start = dist.get_rank() * len(u) if memory.world > 1 else 0
        own = slice(start, start + len(u))
        ctx.save_for_backward(slope[own])
        return torch.where(lone, 0, of_all - of_same)[own]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (slope,) = ctx.saved_tensors
        return gradients[0][:, None] * slope, None, None, None, None, None


def _weighed(
    u: Tensor, ids: Tensor, classes: Tensor, sigma: float, memory: Memory
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Some rows at a time: cosines over sigma (G, rows), -inf with the image itself; whether the
    classes are the same; the rows, normalised."""
    for first, v in memory.chunks(len(u)):
        v = v.to(u.dtype)
        numbers = torch.arange(first, first + len(v), device=u.device)
        s = (u @ v.T / sigma).masked_fill_(ids[:, None] == numbers, -torch.inf)
        same = classes[ids][:, None] == classes[first : first + len(v)]
        yield s, same & (ids[:, None] != numbers), v
