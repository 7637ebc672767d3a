"""Where the host waits in an update that logs nothing, at ZeRO 0 to 3: a table.

    export PYTHONPATH=tests/device/path:tests/engines PRETEND=1
    deepspeed --num_accelerators 2 tests/device/counts.py [FOLDER]

Counted from the loader's batch to the end of the update, on rank 0 of two, with two micro-batches,
after three updates that made what is made once. FOLDER gets counts.json.
"""

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import localization
import numpy as np
import tiny
import torch
from pretend.watch import Wait, watch

from bigvit.data.augment import on_device, three_augment
from bigvit.data.augment.on_device import numbers_of
from bigvit.data.loader import train_batches
from bigvit.data.prepare import Prepare
from bigvit.data.sources import DigitsSource
from bigvit.engines.build import build_engine, meet_ranks
from bigvit.ranks.joining import Ranks, connect, end
from bigvit.recipe import Rates, Recipe, Run, ThreeAugment, batch_layout

STAGES = (0, 1, 2, 3)
KINDS = ("copy", "read", "synchronize")
BEFORE, LR = 3, 1e-3
MICRO_BATCH = 36  # two on each of two ranks
# dropped samples, clipping and dense relative localization are in both
RECIPES = {
    "AdamW": replace(localization.vit, ema=None),
    "LAMB": replace(localization.vit, optim=tiny.lamb.optim),
    "Muon": replace(localization.vit, optim=tiny.muon.optim),
}


def waits(ranks: Ranks, recipe: Recipe, stage: int) -> list[Wait]:
    """Those of one update."""
    layout = batch_layout(recipe, ranks.world, MICRO_BATCH)
    assert layout.accumulation == 2
    engine = build_engine(recipe, Run(sharding=f"zero{stage}"), layout, ranks)
    draws, prepare = engine.task.draws, Prepare(recipe, ranks.device)
    batches = train_batches(DigitsSource("train"), recipe, layout, ranks.rank, 0, 0, draws)
    for _ in range(BEFORE):
        engine.update(prepare.later(next(batches)), Rates(LR))
    with watch() as seen:
        engine.update(prepare.later(next(batches)), Rates(LR))
    return seen


def varied(device: torch.device) -> list[Wait]:
    """Those of images that the device varies, to the bytes that the host would give."""
    images = torch.randint(0, 256, (30, 3, 24, 20), dtype=torch.uint8)
    augment = ThreeAugment(color_jitter=0.3)
    drawn = [numbers_of(three_augment.draw(augment, 0, 0, i)) for i in range(len(images))]
    numbers = torch.from_numpy(np.stack(drawn))
    there = [each.pin_memory().to(device, non_blocking=True) for each in (images, numbers)]
    with watch() as seen:
        made = on_device.apply(*there)
    assert made.device == device and torch.equal(made.cpu(), on_device.apply(images, numbers))
    return seen


def found(ranks: Ranks) -> dict[str, list[Any]]:
    """By optimizer and stage: [kind, who, where, how often], in the order of the first."""
    tables: dict[str, list[Any]] = {}
    for name, recipe in RECIPES.items():
        for stage in STAGES:
            counted = Counter((w.kind, w.who, w.where) for w in waits(ranks, recipe, stage))
            tables[f"{name} {stage}"] = [[*key, count] for key, count in counted.items()]
    tables["varied"] = [[wait.kind, wait.who, wait.where, 1] for wait in varied(ranks.device)]
    return tables


def table(tables: dict[str, list[Any]]) -> str:
    """For a person."""
    lines = [
        f"{'':12}{'ours':>24}{'DeepSpeed and others':>30}",
        f"{'':12}" + f"{'':4}".join(["  copies  reads synchr."] * 2),
    ]
    for name, rows in tables.items():
        numbers = [
            sum(n for kind, who, _, n in rows if kind == wanted and (who == "ours") == ours)
            for ours in (True, False)
            for wanted in KINDS
        ]
        lines.append(f"{name:12}" + "".join(f"{n:>8}" for n in numbers))
    for name, rows in tables.items():
        lines += [f"{name:8} {n} {kind:12} {who}: {where}" for kind, who, where, n in rows]
    return "\n".join(lines)


def counts(ranks: Ranks, folder: Path) -> None:
    """What the tests read."""
    tables = found(ranks)
    if ranks.rank == 0:
        (folder / "counts.json").write_text(json.dumps(tables))


if __name__ == "__main__":
    folders = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
    joined = connect(meet_ranks(Run(timeout=180)), 180)
    made = found(joined)
    if joined.rank == 0:
        print(table(made), flush=True)
    for folder in folders[: joined.rank == 0]:
        (Path(folder) / "counts.json").write_text(json.dumps(made))
    end(0)
