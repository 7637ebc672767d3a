"""What dense relative localization costs: a ViT-S/16 at 224 pixels with the loss and without.

    python -m benchmarks.drloc [--small] [--check]

Counted products of forward and backward, and the time of an update (forward, backward, AdamW).
"""

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from skimage import data as photographs
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import Row, arguments, interleaved, ratio, report
from bigvit.data.batch import Batch
from bigvit.data.prepare import Inputs, Prepare
from bigvit.engines.build import fill, outline
from bigvit.engines.single import SingleEngine
from bigvit.ranks.joining import alone
from bigvit.recipe import AdamW, Rates, Recipe, StochasticDepth, vit
from bigvit.recipe.find import find_recipe
from bigvit.task import Task


def recipes(small: bool) -> dict[str, Recipe]:
    """ViT-B/16's of the supplement's table 9 on CIFAR-10, with a smaller ViT."""
    none = StochasticDepth(rate=0.0, group=8)
    found: dict[str, Recipe] = {}
    for name in ("vit_b16_cifar10", "drloc_vit_b16_cifar10"):
        recipe = find_recipe(name)[1]
        size = "t16" if small else "s16"
        model = vit(size, layer_scale=1.0, drop_path=none, num_classes=10, in_chans=3)
        assert isinstance(recipe.optim, AdamW)
        found[name] = replace(recipe, model=model, data=replace(recipe.data, mix=None))
    return found


def inputs(task: Task, size: int, device: str = "cpu") -> Inputs:
    """Crops of a photograph."""
    picture: Any = photographs.astronaut()
    crops = [picture[8 * i : 8 * i + 224, 16 * i : 16 * i + 224] for i in range(size)]
    images = torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).contiguous()
    numbers = torch.arange(size)
    valid, none = torch.ones(size, dtype=torch.bool), torch.zeros(0, dtype=torch.int64)
    draws = task.draws(0, (0, size))
    batch = Batch(images, numbers % 10, numbers, numbers, 0, 0, valid, none, draws=draws)
    return Prepare(task.recipe, torch.device(device))(batch)


def products(recipe: Recipe) -> int:
    """Multiply-accumulates of forward and backward of an image, counted on meta."""
    task = outline(recipe)
    with FlopCounterMode(display=False) as counter:
        losses = task(inputs(task, 1, "meta"))
        torch.stack(list(losses.values())).sum().backward()
    return counter.get_total_flops() // 2


def main() -> int:
    options = arguments(__doc__ or "")
    torch.set_num_threads(1)
    both = recipes(options.small)
    counted = {name: products(recipe) for name, recipe in both.items()}
    engines: dict[str, SingleEngine] = {}
    given: dict[str, Inputs] = {}
    for name, recipe in both.items():
        engine = SingleEngine(lambda recipe=recipe: Task(recipe), recipe, alone())
        fill(engine, outline(recipe).initial_weight)
        engines[name], given[name] = engine, inputs(engine.task, 2 if options.small else 4)
    plain, with_loss = both
    seconds = interleaved(
        {
            name: lambda name=name: engines[name].update([lambda: given[name]], Rates(1e-4))
            for name in both
        },
        3 if options.small else 11,
    )
    for name, values in seconds.items():
        print(f"{name}: median {np.median(values):.3f} s of {len(values)}")
    more = 100 * (counted[with_loss] / counted[plain] - 1)
    took = ratio(seconds[with_loss], seconds[plain])
    rows = [
        Row("products, + drloc", f"{more:.2f} % more", "", "<= 1.2 %", more <= 1.2),
        Row(
            "time of an update, + drloc over without",
            f"{took.value:.4f}",
            f"{took.low:.4f} to {took.high:.4f}",
        ),
    ]
    size = "T" if options.small else "S"
    return report(f"ViT-{size}/16 at 224 pixels, 64 pairs on a 7 x 7 grid", rows, options.check)


if __name__ == "__main__":
    sys.exit(main())
