"""Deep models with LayerScale, without it, and with a ReZero-like scalar (thesis section 3.5).

    deepspeed --num_accelerators 2 --module benchmarks.deep_layer_scale FASHION_MNIST [--small]

Models of 36 and 48 blocks, 48 channels wide, from scratch on Fashion-MNIST at ZeRO-2 for a fixed
budget of updates, from three seeds: the losses, as they come out.
"""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from bigvit.data.loader import train_batches
from bigvit.data.prepare import Prepare
from bigvit.data.sources import open_source
from bigvit.data.sources.arrays import ArraySource
from bigvit.engines.build import build_engine, meet_ranks
from bigvit.engines.engine import NotFinite
from bigvit.evaluate import evaluate
from bigvit.ranks.joining import Ranks, connect, end
from bigvit.recipe import (
    AdamW,
    BranchScalar,
    CaiT,
    ClassAttention,
    Cosine,
    CrossEntropy,
    Images,
    LayerScale,
    RandomResizedCrop,
    Rates,
    Recipe,
    Residual,
    Run,
    StochasticDepth,
    Unscaled,
    batch_layout,
)

UPDATES, LAST = 120, 20  # the budget, and the updates whose mean loss is told
TESTED = 1000  # test images, the first
DEPTHS, SEEDS = (36, 48), (0, 1, 2)
RESIDUALS: dict[str, Residual] = {
    "LayerScale 1e-6": LayerScale(init=1e-6),
    "none": Unscaled(),
    "a scalar, 0": BranchScalar(init=0.0),
}

RECIPE = Recipe(
    source="bigvit: depth and LayerScale, thesis tables 3.11 and 3.12 made small",
    model=CaiT(
        patch_size=7,
        embed_dim=48,
        depth=36,
        num_heads=3,
        mlp_ratio=4.0,
        talking_heads=False,
        residual=Unscaled(),
        pooling=ClassAttention(depth=2, keys="class and patches"),
        distillation=None,
        dense_head=False,
        drop_path=StochasticDepth(rate=0.0, group=8),
        in_chans=3,
        num_classes=10,
    ),
    data=Images(
        dataset="Fashion-MNIST",
        train_images=60_000,
        test_images=10_000,
        classes=10,
        image_size=28,
        crop=RandomResizedCrop(scale=(0.8, 1.0), ratio=(0.9, 1.1), interpolation="bilinear"),
        flip=0.5,
        augment=None,
        erasing=0.0,
        repeats=1,
        mix=None,
        mean=(0.286, 0.286, 0.286),
        std=(0.353, 0.353, 0.353),
        test_crop_ratio=1.0,
        decode="exact",
        held_out=0.0,
        views=(),
        level="own",
    ),
    objectives=(CrossEntropy(weight=1.0, smoothing=0.0, class_weights=None),),
    teacher=None,
    optim=AdamW(lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05, weight_decay_end=None),
    clip_norm=None,
    schedule=Cosine(epochs=10, warmup_epochs=1, warmup_lr=1e-6, min_lr=1e-5),
    trainable="all",
    layer_decay=1.0,
    starts_from=None,
    resampling="antialiased",
    batch_size=64,
    precision="fp32",
    gradient_precision="fp32",
    ema=None,
    ema_end=None,
    seed=0,
)


class Outcome(NamedTuple):
    """How a training ended; nan where a loss or gradient was not finite on the way."""

    train: float  # mean loss of the last updates
    test: float  # loss of the test images
    top1: float  # percent of them


def train(recipe: Recipe, root: Path, ranks: Ranks, updates: int, tested: int) -> Outcome:
    """Train for so many updates. Collective."""
    layout = batch_layout(recipe, ranks.world, None)
    engine = build_engine(recipe, Run(sharding="zero2"), layout, ranks)
    source, test = (open_source(recipe.data, split, root) for split in ("train", "test"))
    batches = train_batches(source, recipe, layout, ranks.rank, 0, 0, engine.task.draws)
    losses, prepare = list[float](), Prepare(recipe, ranks.device)
    for i in range(updates):
        # the schedule over the budget: a tenth of it is an "epoch"
        lr = recipe.schedule.lr(recipe.optim.lr, i, updates // recipe.epochs)
        try:
            losses.append(engine.update(prepare.later(next(batches)), Rates(lr)).loss)
        except NotFinite:
            return Outcome(math.nan, math.nan, math.nan)
    assert isinstance(test, ArraySource)
    some = ArraySource("test", test.images[:tested], test.targets[:tested], test.classes)
    counts = evaluate(engine.predict, some, recipe.data, 250, ranks)
    return Outcome(mean(losses[-LAST:]), counts.loss, 100 * counts.top1 / counts.images)


def main(args: Sequence[str]) -> None:
    root, *options = [arg for arg in args if not arg.startswith("--local_rank")]
    small = "--small" in options
    ranks = connect(meet_ranks(Run(timeout=180)), 180)
    depths, seeds = ((2, 3), (0, 1)) if small else (DEPTHS, SEEDS)
    updates, tested = (20, 100) if small else (UPDATES, TESTED)
    rows = [
        "| blocks | factor of a branch | training loss | test loss | top-1, % |",
        "|---" * 5 + "|",
    ]
    for depth in depths:
        for name, residual in RESIDUALS.items():
            found: list[Outcome] = []
            for seed in seeds:
                model = replace(RECIPE.model, depth=depth, residual=residual)
                recipe = replace(RECIPE, model=model, seed=seed)
                began = time.perf_counter()
                found.append(train(recipe, Path(root), ranks, updates, tested))
                if ranks.rank == 0:
                    seconds = time.perf_counter() - began
                    print(f"{depth} {name}, seed {seed}: {found[-1]}, {seconds:.0f} s", flush=True)
            cells = [", ".join(f"{v:.2f}" for v in values) for values in zip(*found, strict=True)]
            rows.append(f"| {depth} | {name} | {' | '.join(cells)} |")
    if ranks.rank == 0:
        print("\n" + "\n".join(rows))
    end(0)


if __name__ == "__main__":
    main(sys.argv[1:])
