"""What DeepSpeed's engine costs: an update at one rank beside `single` on the same model.

    python -m benchmarks.engine [--small] [--check]

Row 12 of docs/performance.md: ViT-S/14 at 126 px by DeiT III's procedure, 32 images in one
micro-batch, LAMB, an average, clipping, half of the samples dropped; whole updates in float32.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from benchmarks.measure import Row, arguments, interleaved, ratio, report
from bigvit.data.batch import Batch
from bigvit.data.prepare import Prepare
from bigvit.engines.build import build_engine, meet_ranks
from bigvit.ranks.joining import alone, connect
from bigvit.recipe import Layout, Rates, Recipe, Run
from bigvit.recipe.find import find_recipe
from bigvit.task import Task

SHARDINGS = ("zero1", "zero0", "zero3")
GOAL = 1.03  # of the first, which is the default


def recipe(small: bool, count: int = 32) -> Recipe:
    """Of that many images; without mixing and repeats, as they are made up."""
    taken = find_recipe("deit3_h14_in1k_126")[1]
    width, depth, count = (64, 2, 8) if small else (384, 12, count)
    model = replace(taken.model, embed_dim=width, depth=depth, num_heads=width // 64)
    data = replace(taken.data, mix=None, repeats=1)
    return replace(taken, model=model, data=data, batch_size=count, precision="fp32", ema=0.9999)


def batch(task: Task, count: int, device: torch.device, number: int = 0) -> Batch:
    """Random images of the task's size, on the device already."""
    generator = torch.Generator().manual_seed(number)
    side = task.recipe.data.image_size
    assert isinstance(side, int)
    images = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
    ids, good = torch.arange(count), torch.ones(count, dtype=torch.bool)
    none, draws = torch.zeros(0, dtype=torch.int64), task.draws(number, (0, count))
    return Batch(images, ids % 1000, ids, ids, number, 0, good, none, draws=draws).to(device)


def main() -> int:
    options = arguments(__doc__ or "")
    taken = recipe(options.small)
    layout = Layout(world=1, micro_batch=taken.batch_size, accumulation=1)
    ranks = connect(meet_ranks(Run(timeout=120)), 120)
    engines = {"single": build_engine(taken, Run(engine="single"), layout, alone())}
    for name in SHARDINGS:
        engines[name] = build_engine(taken, Run(sharding=name), layout, ranks)
    inputs = partial(
        Prepare(taken, ranks.device),
        batch(engines["single"].task, taken.batch_size, ranks.device),
    )
    runs: dict[str, Callable[[], object]] = {
        name: partial(engine.update, [inputs], Rates(1e-3)) for name, engine in engines.items()
    }
    seconds = interleaved(runs, rounds=3 if options.small else 15, warmup=2)
    rows: list[Row] = []
    for name in SHARDINGS:
        found = ratio(seconds[name], seconds["single"])
        interval, goal = f"{found.low:.3f} to {found.high:.3f}", name == SHARDINGS[0]
        rows.append(
            Row(
                f"an update by DeepSpeed, {name}, over single",
                f"{found.value:.3f}",
                interval,
                f"<= {GOAL}" if goal else "",
                found.value <= GOAL if goal else None,
            )
        )
    return report("One rank, one thread", rows, options.check)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
