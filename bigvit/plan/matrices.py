"""What Muon's matrices cost: who orthogonalises which, what is sent for it, and how many FLOPs that
are. No torch here."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from bigvit.engines.arrangement import NAMED
from bigvit.plan.cuts import elements, share, sub_groups, zero_of
from bigvit.plan.cuts import owners as of_fairscale
from bigvit.plan.weights import BYTES, Weight, Weights, weights_of
from bigvit.recipe import Layout, Muon, Recipe, Run
from bigvit.recipe.muon import owners

TOGETHER = 2**26  # elements of one shape at once, as `bigvit.optim.matrices` has it
COPIES = 4  # of those, in an iteration

Cut = tuple[tuple[int, int], list[int]]
"""Rows and columns of a matrix, and how many of its elements each rank has."""


@dataclass(frozen=True)
class Spread:
    """What an update's matrices ask of each rank."""

    ranks: int  # that share them
    calls: int  # all-to-alls
    sent: tuple[int, ...]  # bytes that each rank gives to these, or takes where that is more
    flops: tuple[int, ...]  # of each rank's iterations
    temporary: int  # bytes of pieces and matrices on their way and at work, at most


def spread(recipe: Recipe, layout: Layout, run: Run, per_node: int) -> Spread | None:
    """None where the recipe's optimizer has no matrices.

    Args:
        per_node: ranks of a node.
    """
    if not isinstance(recipe.optim, Muon):
        return None
    by_layer = recipe.layer_decay != 1
    here = per_node if run.engine == "fsdp2" else 0
    way = Run(engine=run.engine, sharding=run.sharding)
    return _spread(weights_of(recipe), recipe.optim, by_layer, layout.world, way, here)


@lru_cache
def _spread(
    weights: Weights, muon: Muon, by_layer: bool, world: int, run: Run, per_node: int
) -> Spread:
    calls = list(_calls(weights.groups(by_layer), world, run, per_node))
    ranks = max((len(held) for cuts in calls for _, held in cuts), default=1)
    sent, flops = [0] * ranks, [0] * ranks
    times, largest = 0, 0
    for cuts in calls:
        found = owners([shape for shape, _ in cuts], [held for _, held in cuts])
        mine = [0] * ranks
        # elements that each rank gives and takes, to owners and from them
        given, taken = ([[0] * ranks for _ in range(2)] for _ in range(2))
        for ((rows, columns), held), owner in zip(cuts, found, strict=True):
            flops[owner] += muon.flops(rows, columns)
            mine[owner] += rows * columns
            lacks = held[owner] < rows * columns
            for rank, size in enumerate(held):
                if rank != owner and size:
                    given[1][owner] += size
                    taken[1][rank] += size
                    given[0][rank] += size * lacks
                    taken[0][owner] += size * lacks
        for out, back in zip(given, taken, strict=True):
            times += any(out)
            for rank in range(ranks):
                sent[rank] += BYTES[muon.ns_precision] * max(out[rank], back[rank])
        at_once = min(max(mine), max(TOGETHER, *(prod(shape) for shape, _ in cuts)))
        pieces = max(sum(held[rank] for _, held in cuts) for rank in range(ranks))
        moving = 2 * (pieces + max(mine)) if any(given[1]) else 0
        largest = max(largest, pieces + moving + COPIES * at_once)
    return Spread(ranks, times, tuple(sent), tuple(flops), BYTES[muon.ns_precision] * largest)


def _calls(all_: list[list[Weight]], world: int, run: Run, per_node: int) -> Iterator[list[Cut]]:
    """The matrices that are orthogonalised together."""
    groups = [group for group in all_ if group[0].hidden]
    together = [w for group in groups for w in group]
    match run.engine:
        case "fsdp2":
            within = NAMED["fsdp2"][run.arrangement].within_hosts
            ranks = min(per_node, world) if within else world
            yield [cut for w in together for cut in _split(w, _even(w, -(-w.rows // ranks), ranks))]
        case "fairscale":  # each rank alone: as if it sent nothing, by owners that are given
            mine = of_fairscale(all_, world)
            yield [
                cut
                for rank, part in enumerate(mine)
                for w in part
                if w.hidden
                for cut in _split(w, _only(w, rank, world))
            ]
        case "deepspeed":
            zero = zero_of(run)
            if zero["stage"] == 0:
                yield [cut for w in together for cut in _split(w, [range(w.size)] * world)]
            elif zero["stage"] == 3:
                for group in sub_groups(all_, world, zero):
                    if group[0].hidden:
                        lengths = ((w, -(-w.size // world)) for w in group)
                        yield [
                            cut
                            for w, length in lengths
                            for cut in _split(w, _shares(0, w.size, length, world))
                        ]
            else:
                for group in groups:
                    yield list(_flat(group, world, zero["round_robin_gradients"]))
        case "single":
            yield [cut for w in together for cut in _split(w, [range(w.size)])]


def _flat(group: Sequence[Weight], world: int, in_turns: bool) -> Iterator[Cut]:
    """Of a group that is laid end to end, and cut evenly."""
    length, at = share(elements(group), world), 0
    order = [w for i in range(world) for w in group[i::world]] if in_turns else group
    for w in order:
        yield from _split(w, _shares(at, w.size, length, world))
        at += w.size


def _even(w: Weight, rows: int, ranks: int) -> list[range]:
    return _shares(0, w.size, rows * (w.size // w.rows), ranks)


def _only(w: Weight, rank: int, world: int) -> list[range]:
    return [range(w.size if each == rank else 0) for each in range(world)]


def _shares(at: int, size: int, length: int, ranks: int) -> list[range]:
    """The elements of a weight that lie in each rank's share.

    Args:
        at: where the weight begins in the first one's.
    """
    bounds = [min(max(0, rank * length - at), size) for rank in range(ranks + 1)]
    return [range(bounds[rank], bounds[rank + 1]) for rank in range(ranks)]


def _split(w: Weight, held: Sequence[range]) -> Iterable[Cut]:
    """The matrices that lie above each other in a weight."""
    size = w.size // w.parts
    for first in range(0, w.size, size):
        overlap = [max(0, min(each.stop, first + size) - max(each.start, first)) for each in held]
        yield (w.rows // w.parts, w.size // w.rows), overlap
