"""What a rank does to show that CaiT is trained alike however it is sharded."""

from pathlib import Path

import tiny
from launched import train

from bigvit.engines.ranks import Ranks

RECIPES = {"adamw": tiny.cait_adamw, "lamb": tiny.cait_lamb}


def cait_runs(ranks: Ranks, folder: Path) -> None:
    """Whole runs at every stage; at 3 most weights are fetched, and every block is recomputed."""
    for name, recipe in RECIPES.items():
        for stage in range(4):
            share = 1.0 if stage == 3 else 0.0
            options = {"sharding": f"zero{stage}", "checkpoint_activations": share}
            train(ranks, folder / f"{name} {stage}", recipe, micro_batch=36, **options)


SCENARIOS = (cait_runs,)
