"""What ranks do to show that a run that rolled back is one that never saw the batches."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import lamb
import tiny
from guards import infinite, twenty_times
from launched import Way, changed_losses, options, train

from bigvit.ranks.joining import Ranks
from bigvit.recipe import Recipe

INFINITE, JUMP = 4, 12  # batches, by their numbers: one before, and one after ten losses are known
EVERY = 5  # batches between checkpoints: before the first there are the initial weights alone
STOP = 13  # past the evaluation after the first epoch's ten
WAYS: tuple[Way, ...] = (2, 3, "fsdp2 full")
MORE: tuple[Way, ...] = (0, 1, "fsdp2 grads", "fairscale oss", "fairscale sdp")
OPTIONS = {"loss_jump": 3.0, "stop_after": STOP, "checkpoint_every": EVERY}
bf16 = replace(tiny.lamb, precision="bf16")
fp16 = replace(tiny.lamb, precision="fp16")


def rolled(ranks: Ranks, folder: Path) -> None:
    """Back to the initial weights, and to a checkpoint; with accumulation, an average and
    clipping."""
    for way in WAYS:
        pair(ranks, folder, way, tiny.lamb)


def rolled_more(ranks: Ranks, folder: Path) -> None:
    """The other arrangements, and half precision."""
    for way in MORE:
        pair(ranks, folder, way, tiny.lamb)
    for way in (0, 3, "fsdp2 full"):
        pair(ranks, folder, way, bf16)


def rolled_offloaded(ranks: Ranks, folder: Path) -> None:
    """DeepSpeed with its optimizer on the host."""
    for name in ("stage 2, offloaded", "stage 3, offloaded"):
        pair(ranks, folder, name, tiny.lamb, sharding=lamb.sharding(ranks, folder, name))


def rolled_fp16(ranks: Ranks, folder: Path) -> None:
    """With a loss scale, which overflows at first."""
    for way in (0, 2, 3, "fsdp2 full", "fairscale oss"):
        pair(ranks, folder, way, fp16)


def pair(ranks: Ranks, folder: Path, way: Way, recipe: Recipe, **given: Any) -> None:
    """A run that rolls back, and one that is told at its start."""
    chosen = {} if "sharding" in given else options(way)
    named, more = f"{recipe.precision} {way}", {**chosen, **given, **OPTIONS}
    with changed_losses({INFINITE - 1}, ranks, infinite):
        with changed_losses({JUMP - 1}, ranks, twenty_times):
            train(ranks, folder / f"rolled {named}", recipe, on_jump="rollback", **more)
    skipped = f"{INFINITE},{JUMP}"
    train(ranks, folder / f"told {named}", recipe, skip_batches=skipped, **more)


SCENARIOS = (rolled, rolled_more, rolled_offloaded, rolled_fp16)
