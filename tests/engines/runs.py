"""One run of a recipe on ranks that joined already."""

from pathlib import Path

import tiny

from bigvit.checkpoint.folder import RunFolder, plan_start
from bigvit.engines.ranks import Ranks
from bigvit.loop import run
from bigvit.recipe import Command, Recipe, Run, layout


def train(ranks: Ranks, folder: Path, recipe: Recipe, **options: object) -> str:
    """One run of the recipe, as `scripts/train.py` does it after its checks."""
    values = {"log_every": 1, "workers": 0, "micro_batch": tiny.MICRO_BATCH, **options}
    command = Command(folder.name, recipe, Run(run_dir=folder, **values), ())
    start = plan_start(command)
    ranks.agree(0)  # every rank has looked before rank 0 writes
    opened = RunFolder(folder, command, ranks.world) if ranks.rank == 0 else None
    cut = layout(recipe, ranks.world, command.run.micro_batch)
    outcome = run(command, cut, start, ranks, opened, lambda: False)
    if opened is not None:
        opened.say(outcome)
        opened.close()
    return outcome
