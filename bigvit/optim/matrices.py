"""Where the elements of matrices lie, and the way of each to the rank that works on it whole."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from bigvit.recipe.muon import owners

TOGETHER = 2**26  # elements of matrices of one shape that are worked on at once
NOTHING = range(0)


@dataclass(frozen=True)
class Matrix:
    """A matrix, and what each rank has of it."""

    rows: int
    columns: int
    held: tuple[range, ...]  # by rank: its elements, row by row; all of them where it is whole
    tensor: Tensor  # that has this rank's
    start: int  # where they begin there

    @property
    def size(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class Exchange:
    """The ranks that have a matrix between them."""

    rank: int  # this one, among them
    group: dist.ProcessGroup | None  # None: all ranks
    device: torch.device  # where collectives, and the work, are done


def matrices_of(
    shape: Sequence[int],
    parts: int,
    held: Sequence[range],
    rank: int,
    tensor: Tensor,
    start: int,
) -> Iterator[Matrix]:
    """The matrices that lie above each other in a parameter.

    Args:
        held: elements of the flattened parameter, by rank.
        tensor: that has those of this rank, from `start` on.
    """
    rows, columns = shape[0] // parts, prod(shape[1:])
    for i in range(parts):
        first, last = i * rows * columns, (i + 1) * rows * columns
        cut = [range(max(each.start, first), min(each.stop, last)) for each in held]
        skipped = max(0, first - held[rank].start)
        own = (range(each.start - first, each.stop - first) if each else NOTHING for each in cut)
        yield Matrix(rows, columns, tuple(own), tensor, start + skipped)


class Way:
    """How some matrices come to those who work on them, and back. The same on every rank.

    Each has one owner, so that a matrix is worked on once. An owner is sent what it lacks, and
    sends every rank what that holds: of w ranks each sends about a w-th of all matrices twice.
    Were they gathered everywhere, each would take all of them, and work on all of them.
    """

    def __init__(self, matrices: Sequence[Matrix], exchange: Exchange | None) -> None:
        """Args: exchange: None where all are whole here, and nobody else has them."""
        self.matrices, self.exchange = matrices, exchange
        self.me = me = 0 if exchange is None else exchange.rank
        world, numbers = len(matrices[0].held), range(len(matrices))
        shapes = [(each.rows, each.columns) for each in matrices]
        owner = owners(shapes, [[len(span) for span in each.held] for each in matrices])
        lacking = [i for i in numbers if len(matrices[i].held[owner[i]]) < matrices[i].size]

        def between(wanted: Sequence[int], holder: int, owned_by: int) -> list[int]:
            if holder == owned_by:
                return []
            return [i for i in wanted if owner[i] == owned_by and matrices[i].held[holder]]

        # by rank: numbers of the matrices of which a piece goes there, or comes from there
        self.to_owner = [between(lacking, me, rank) for rank in range(world)]
        self.from_holder = [between(lacking, rank, me) for rank in range(world)]
        self.to_holder = [between(numbers, rank, me) for rank in range(world)]
        self.from_owner = [between(numbers, me, rank) for rank in range(world)]
        # whether any rank sends anything: these are collectives
        self.gathers = bool(lacking)
        self.returns = any(
            between(numbers, holder, owned_by) for holder in range(world) for owned_by in set(owner)
        )
        self.batches = _batches([i for i in numbers if owner[i] == me], shapes)

    def __call__(
        self, held: Sequence[Tensor], work: Callable[[Tensor], Tensor]
    ) -> Iterator[tuple[int, Tensor]]:
        """Work on every matrix, whole; yields the number of each of which this rank has elements,
        with what these became, flat. Collective.

        Args:
            held: of each matrix this rank's elements, flat, where the work is done.
            work: (B, rows, columns) -> the same shape, each by itself.
        """
        matrices, me = self.matrices, self.me
        pieces: dict[int, list[tuple[range, Tensor]]] = {}
        if self.gathers:
            out = [[held[i] for i in numbers] for numbers in self.to_owner]
            sizes = [
                [len(matrices[i].held[rank]) for i in numbers]
                for rank, numbers in enumerate(self.from_holder)
            ]
            came = self._send(out, sizes, held[0])
            for rank, numbers in enumerate(self.from_holder):
                for i in numbers:
                    pieces.setdefault(i, []).append((matrices[i].held[rank], next(came)))
        out = [[held[0]] * len(numbers) for numbers in self.to_holder]  # each has its place
        for batch in self.batches:
            first = matrices[batch[0]]
            whole = held[0].new_empty(len(batch), first.size)
            for row, i in zip(whole.unbind(), batch, strict=True):
                for span, piece in (*pieces.pop(i, ()), (matrices[i].held[me], held[i])):
                    row[span.start : span.stop] = piece
            done = work(whole.view(len(batch), first.rows, first.columns))
            for row, i in zip(done.reshape(len(batch), -1).unbind(), batch, strict=True):
                for rank, numbers in enumerate(self.to_holder):
                    if i in numbers:
                        span = matrices[i].held[rank]
                        out[rank][numbers.index(i)] = row[span.start : span.stop]
                if span := matrices[i].held[me]:
                    yield i, row[span.start : span.stop]
        if self.returns:
            sizes = [[len(matrices[i].held[me]) for i in each] for each in self.from_owner]
            came = self._send(out, sizes, held[0])
            yield from ((i, next(came)) for numbers in self.from_owner for i in numbers)

    def _send(
        self, out: Sequence[Sequence[Tensor]], sizes: Sequence[Sequence[int]], like: Tensor
    ) -> Iterator[Tensor]:
        """Send pieces to each rank, and take others of these sizes from each, in the order of
        ranks. Collective: one all-to-all."""
        assert self.exchange is not None, "whoever is alone has everything"
        given = torch.cat([like[:0], *(piece for pieces in out for piece in pieces)])
        taken = given.new_empty(sum(map(sum, sizes)))
        dist.all_to_all_single(
            taken,
            given,
            [sum(each) for each in sizes],
            [sum(map(len, pieces)) for pieces in out],
            group=self.exchange.group,
        )
        return iter(taken.split([size for each in sizes for size in each]))


def _batches(numbers: Sequence[int], shapes: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Matrices of one shape together, as many as are not too large."""
    found: list[list[int]] = []
    for shape in dict.fromkeys(shapes[i] for i in numbers):
        alike = [i for i in numbers if shapes[i] == shape]
        most = max(1, TOGETHER // prod(shape))
        found += [alike[at : at + most] for at in range(0, len(alike), most)]
    return found
