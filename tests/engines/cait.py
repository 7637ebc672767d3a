"""What a rank does to show that CaiT is trained alike however it is sharded."""

import json
from pathlib import Path

import tiny
from launched import train

from bigvit.ranks.joining import Ranks

RECIPES = {"adamw": tiny.cait_adamw, "lamb": tiny.cait_lamb}
EVERY = [(name, stage) for name in RECIPES for stage in range(4)]
ORDINARY = [("adamw", 2), ("adamw", 3), ("lamb", 1), ("lamb", 3)]  # the others are slow
FETCHED = {  # as with a large model: every weight is fetched where it is used, and let go after
    "stage": 3,
    "sub_group_size": 5000,
    "stage3_param_persistence_threshold": 0,
    "stage3_prefetch_bucket_size": 5000,
}


def cait_runs(ranks: Ranks, folder: Path) -> None:
    """Whole runs at some stages."""
    _runs(ranks, folder, ORDINARY)


def cait_other_runs(ranks: Ranks, folder: Path) -> None:
    """Those at the other stages."""
    _runs(ranks, folder, [each for each in EVERY if each not in ORDINARY])


def _runs(
    ranks: Ranks, folder: Path, which: list[tuple[str, int]], stop_after: int = tiny.SHORT
) -> None:
    """At stage 3 every block is recomputed."""
    fetched = folder / "fetched.json"
    if ranks.rank == 0:
        fetched.write_text(json.dumps({"zero_optimization": FETCHED}))
    ranks.agree(0)
    for name, stage in which:
        sharding = str(fetched) if stage == 3 else f"zero{stage}"
        options = {"sharding": sharding, "checkpoint_activations": float(stage == 3)}
        options |= {"micro_batch": 36, "stop_after": stop_after}
        train(ranks, folder / f"{name} {stage}", RECIPES[name], **options)


SCENARIOS = (cait_runs, cait_other_runs)
