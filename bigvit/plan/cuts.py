"""How engines cut, group and gather parameters: what a rank has of them. No torch here."""

from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace
from itertools import groupby
from typing import Any

from bigvit.engines.deepspeed.config import read_sharding, stage_of
from bigvit.plan.weights import Weight, Weights
from bigvit.recipe import Run
from bigvit.recipe.depth import spread

DEFAULTS = {
    "reduce_bucket_size": 500_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 100_000,
    "stage3_model_persistence_threshold": 2**63 - 1,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "sub_group_size": 1_000_000_000,
    "contiguous_gradients": True,
    "reduce_scatter": True,
    "round_robin_gradients": False,
    "use_multi_rank_bucket_allreduce": True,
    "zero_hpz_partition_size": 1,
}
"""DeepSpeed's, of what bears on memory and traffic; `overlap_comm` is on at stage 3 alone."""

WHOLE_BUCKET = 500_000_000  # elements that stage 0 reduces at once
REDUCED = 2**23  # elements of one of ShardedDataParallel's buckets


def zero_of(run: Run) -> dict[str, Any]:
    """What a DeepSpeed configuration says of memory and traffic, with DeepSpeed's defaults."""
    config = read_sharding(run.arrangement)
    given: dict[str, Any] = config.get("zero_optimization", {})
    zero = {**DEFAULTS, "overlap_comm": stage_of(config) == 3, **given, "stage": stage_of(config)}
    for key in ("offload_optimizer", "offload_param"):
        where: dict[str, Any] = given.get(key) or {}
        zero[key] = where.get("device", "none") != "none"
    return {k: int(v) if type(v) is float else v for k, v in zero.items()}


def elements(weights: Sequence[Weight]) -> int:
    return sum(w.size for w in weights)


def pieces(weights: Sequence[Weight], ranks: int) -> int:
    """Elements that a rank holds of parameters that are cut one by one, padded."""
    return sum(-(-w.size // ranks) for w in weights)


def rows(weights: Sequence[Weight], ranks: int) -> int:
    """Elements that the first rank holds of parameters that are cut along their first dimension."""
    return sum(-(-w.rows // ranks) * (w.size // w.rows) for w in weights)


def share(size: int, ranks: int) -> int:
    """Elements of a rank's even share, as DeepSpeed aligns it."""
    return -(-size // (2 * ranks)) * 2


def sub_groups(groups: list[list[Weight]], world: int, zero: dict[str, Any]) -> list[list[Weight]]:
    """What stage 3 updates one after the other."""
    found: list[list[Weight]] = []
    for group in groups:
        found.append([])
        held = 0
        for w in group:
            if held >= zero["sub_group_size"]:
                found.append([])
                held = 0
            found[-1].append(w)
            held += pieces([w], world)
    return found


def persistent(weights: Sequence[Weight], zero: dict[str, Any]) -> list[Weight]:
    """What stage 3 leaves whole, as it is small."""
    found: list[Weight] = []
    total = 0
    for w in weights:
        if total + w.size <= zero["stage3_model_persistence_threshold"]:
            if w.size <= zero["stage3_param_persistence_threshold"]:
                found.append(w)
                total += w.size
    return found


def gathers(
    weights: Weights,
    zero: dict[str, Any],
    recomputed: float,
    follower: Sequence[Weight] = (),
    passes: tuple[int, int] = (1, 0),
) -> tuple[list[Weight], list[Weight]]:
    """What stage 3 gathers in a micro-batch's forward pass, and again in it or in backward: what it
    did not keep, as modules of more elements than the reuse distance are used in between.

    Args:
        passes: of the model, and of the follower, which come first.
    """
    every = [*follower, *weights.all]
    small = set(map(id, persistent([*weights.all, *follower], zero)))
    blocks = 1 + max((w.block for w in weights.all if w.block is not None), default=-1)
    twice = spread(round(recomputed * blocks), blocks) if blocks else []
    asked, heads_asked = (_modules(follower, behind) * passes[1] for behind in (False, True))
    model, heads = _modules(weights.all, False) * passes[0], _modules(weights.all, True)
    used = [*asked, *heads_asked, *model, *heads]
    for block, inside in groupby(reversed([*model, *heads]), lambda each: each[0].block):
        back = list(inside)
        used += back[::-1] * (block is not None and twice[block]) + back
    last: dict[int, int] = {}  # where the elements of a module end that was used
    at, again = 0, list[Weight]()
    for module in used:
        key = id(module[0])
        if key in last and at - last[key] >= zero["stage3_max_reuse_distance"]:
            again += [w for w in module if id(w) not in small]
        at += elements(module)
        last[key] = at
    return [w for w in every if id(w) not in small], again


def _modules(weights: Iterable[Weight], behind: bool) -> list[list[Weight]]:
    """Those of the model that are read, or behind it, each with its weights."""
    found: dict[int, list[Weight]] = {}
    for w in weights:
        # the model's own are there to the end
        if w.read and w.behind == behind and (w.rows > 1 or w.block is not None):
            found.setdefault(w.module, []).append(w)
    return list(found.values())


def alive(
    weights: Weights, zero: dict[str, Any], recomputed: float, follower: Sequence[Weight] = ()
) -> int:
    """Elements that stage 3 has whole where most are: at the end of a forward pass it has kept what
    backward uses within the reuse distance, and fetches the next. Of a follower, which is not used
    again, what is small is left."""
    first, again = gathers(weights, zero, recomputed)
    gone = {w.module: w for w in again}  # a recomputed block's may be there twice
    stay = elements(persistent([*weights.all, *follower], zero))
    kept = elements([w for w in first if w.module not in gone])
    fetched = max(0, zero["stage3_max_live_parameters"] - kept)
    fetched = min(zero["stage3_prefetch_bucket_size"], fetched)
    module = max((w.size for w in first), default=0)
    return stay + min(kept + fetched + module, elements(first))


def units(weights: Iterable[Weight]) -> list[list[Weight]]:
    """What fsdp2 gathers at once: what lies outside of blocks, then each block."""
    found: dict[int, list[Weight]] = {-1: []}
    for w in weights:
        found.setdefault(-1 if w.block is None else w.block, []).append(w)
    return [found[key] for key in sorted(found)]


def owners(groups: list[list[Weight]], world: int) -> list[list[Weight]]:
    """Each rank's parameters: one after the other goes to the rank with the fewest elements."""
    sizes = [(0, rank) for rank in range(world)]
    heapify(sizes)
    found: list[list[Weight]] = [[] for _ in range(world)]
    for w in (w for group in groups for w in group):
        size, rank = sizes[0]
        found[rank].append(w)
        heapreplace(sizes, (size + w.size, rank))
    return found


def bucketed(part: Sequence[Weight], total: int) -> int:
    """Elements of a rank's parameters whose gradients ShardedDataParallel reduces in one bucket."""
    filled = 0
    for size in sorted(w.size for w in part):
        if filled + size > min(REDUCED, total):
            break
        filled += size
    return filled
