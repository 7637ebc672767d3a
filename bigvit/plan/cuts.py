"""How engines cut, group and gather parameters: what a rank has of them. No torch here."""

from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import Any

from bigvit.engines.deepspeed.config import read_sharding, stage_of
from bigvit.plan.weights import Weight, Weights
from bigvit.recipe import Run

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
WIDE = 4  # bytes of a number of masters, moments and averages

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
    "zero_hpz_partition_size": 1,
}
"""DeepSpeed's, of what bears on memory and traffic; `overlap_comm` is on at stage 3 alone."""

WHOLE_BUCKET = 500_000_000  # elements that stage 0 reduces at once
REDUCED = 2**23  # elements of one of ShardedDataParallel's buckets


def zero_of(run: Run) -> dict[str, Any]:
    """What a DeepSpeed configuration says of memory and traffic, with DeepSpeed's defaults."""
    config = read_sharding(run.arrangement)
    given = config.get("zero_optimization", {})
    zero = {**DEFAULTS, "overlap_comm": stage_of(config) == 3, **given, "stage": stage_of(config)}
    for key in ("offload_optimizer", "offload_param"):
        zero[key] = (given.get(key) or {}).get("device", "none") != "none"
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


def persistent(weights: Weights, zero: dict[str, Any]) -> list[Weight]:
    """What stage 3 leaves whole, as it is small."""
    found: list[Weight] = []
    total = 0
    for w in weights.all:
        if total + w.size <= zero["stage3_model_persistence_threshold"]:
            if w.size <= zero["stage3_param_persistence_threshold"]:
                found.append(w)
                total += w.size
    return found


def alive(weights: Weights, zero: dict[str, Any], run: Run) -> int:
    """Elements that stage 3 has whole where most are: at the end of a forward pass it has kept what
    backward uses within the reuse distance, and fetches the next."""
    small = set(map(id, persistent(weights, zero)))
    large = [w for w in weights.all if id(w) not in small]
    stay = elements(weights.all) - elements(large)
    kept = behind = 0
    for w in reversed(large):
        if 2 * behind >= zero["stage3_max_reuse_distance"]:
            break
        kept += w.size
        behind += w.size
    fetched = min(
        zero["stage3_prefetch_bucket_size"], max(0, zero["stage3_max_live_parameters"] - kept)
    )
    module = max((w.size for w in large), default=0)
    return stay + min(kept + fetched + module, elements(large))


def units(weights: Weights) -> list[list[Weight]]:
    """What fsdp2 gathers at once: what lies outside of blocks, then each block."""
    found: dict[int, list[Weight]] = {-1: []}
    for w in weights.all:
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
