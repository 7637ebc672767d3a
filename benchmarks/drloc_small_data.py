"""Dense relative localization on little data: two backbones on real images, with the loss and
without, the same seeds for both.

    python -m benchmarks.drloc_small_data [--small] [--seeds 3] [--updates 2500]
    python -m benchmarks.drloc_small_data --rates 2e-3 5e-3 1e-2 --updates 1000

Fashion-MNIST (Debian's dataset-fashion-mnist) with 1,000 and 5,000 training images, tested on the
first 2,000; scikit-learn's digits with 300, tested on the others. Prints docs/drloc.md's table.
With --rates, what the learning rate was chosen by: baselines on 1,000 images of Fashion-MNIST,
tested on 2,000 other training images.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

from bigvit.data.loader import train_batches
from bigvit.data.prepare import Prepare
from bigvit.data.sources import Source, open_source
from bigvit.data.sources.arrays import ArraySource
from bigvit.engines.build import fill, outline
from bigvit.engines.single import SingleEngine
from bigvit.evaluate import evaluate
from bigvit.ranks.joining import alone
from bigvit.recipe import (
    AdamW,
    AveragePooling,
    ClassToken,
    Cosine,
    CrossEntropy,
    DRLoc,
    Images,
    Model,
    RandomResizedCrop,
    Recipe,
    StochasticDepth,
    Swin,
    ViT,
    batch_layout,
)
from bigvit.task import Task

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
NONE = StochasticDepth(rate=0.0, group=1)
LR = 5e-3
LAMBDA = {"ViT": 0.1, "Swin": 0.5}  # the paper's for Swin, and T2T's and CvT's


@dataclass(frozen=True)
class Data:
    """Images to train on, and all that are tested."""

    name: str
    train: Source
    test: Source
    size: int  # pixels
    flip: float
    batch_size: int


def some(source: Source, count: int, after: int = 0) -> ArraySource:
    """`count` images of a source, as many of each class, from those after so many others."""
    targets = source.targets
    order = np.random.default_rng(0).permutation(len(targets))
    classes = [order[targets[order] == c][after // 10 :][: count // 10] for c in range(10)]
    return taken(source, np.concatenate(classes))


def taken(source: Source, chosen: Any) -> ArraySource:
    """The chosen images of a source, by number."""
    images = np.stack([np.asarray(source.read(int(i))) for i in chosen])
    targets = source.targets[chosen].astype(np.uint8)
    return ArraySource("train", images, targets, source.classes)


def digits() -> Data:
    """300 of the scanned digits."""
    scans: Any = load_digits()
    pixels = (scans.images * 255 / 16).round().astype(np.uint8)
    every = ArraySource("train", pixels, scans.target.astype(np.uint8), list("0123456789"))
    few = some(every, 300)
    chosen = {row.tobytes() for row in few.images[..., 0]}
    rest = [i for i in range(len(pixels)) if pixels[i].tobytes() not in chosen]
    return Data("digits, 300", few, taken(every, rest), 8, 0.0, 30)


def fashion_mnist(held_out: bool = False) -> Iterator[Data]:
    """1,000 and 5,000 of its training images, and some of its test or other training images."""
    recipe = Images("Fashion-MNIST", 60_000, 10_000, 10, *_images(28, 0.5))
    train = open_source(recipe, "train", FASHION_MNIST)
    test = taken(open_source(recipe, "test", FASHION_MNIST), range(2000))
    if held_out:
        test = some(train, 2000, after=5000)
    for count in (1000, 5000):
        yield Data(f"Fashion-MNIST, {count:,}", some(train, count), test, 28, 0.5, 32)


def _images(size: int, flip: float) -> tuple[Any, ...]:
    """Crops, and flips where they mean the same; nothing else."""
    crop = RandomResizedCrop((0.8, 1.0), (3 / 4, 4 / 3), "bilinear")
    return (
        size,
        crop,
        flip,
        None,
        0.0,
        (),
        "own",
        1,
        None,
        (0.3,) * 3,
        (0.35,) * 3,
        1.0,
        "exact",
        0.0,
    )


def backbones(size: int) -> dict[str, Model]:
    """Both of 0.1 M parameters, whose last grid is 7 x 7, or 4 x 4 of digits."""
    patch, window = (4, 7) if size == 28 else (2, 4)
    return {
        "ViT": ViT(patch, 48, 3, 3, 4.0, 1.0, ClassToken(0), False, NONE, 3, 10),
        "Swin": Swin(patch // 2, 24, (1, 2), (1, 2), window, 4.0, AveragePooling(), NONE, 3, 10),
    }


def recipe_of(data: Data, model: Model, seed: int, updates: int, lr: float = LR) -> Recipe:
    """AdamW and a cosine, no loss but cross-entropy."""
    epochs = max(1, round(updates / (len(data.train) // data.batch_size)))
    return Recipe(
        source="benchmarks/drloc_small_data.py",
        model=model,
        data=Images(data.name, len(data.train), len(data.test), 10, *_images(data.size, data.flip)),
        objectives=(CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None),),
        teacher=None,
        optim=AdamW(lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05, weight_decay_end=None),
        clip_norm=1.0,
        schedule=Cosine(epochs, max(1, epochs // 10), 1e-5, 1e-5),
        trainable="all",
        layer_decay=1.0,
        starts_from=None,
        resampling="antialiased",
        batch_size=data.batch_size,
        precision="fp32",
        gradient_precision="fp32",
        ema=None,
        ema_end=None,
        seed=seed,
    )


def with_loss(recipe: Recipe, weight: float) -> Recipe:
    """The same with the loss of the paper; its MLP is as wide as the small models allow."""
    loss = DRLoc(weight, None, "absolute", "grid", 0.001, "last", True, 64, 7, "mean", 128, 2)
    return replace(recipe, objectives=(*recipe.objectives, loss))


def accuracy(recipe: Recipe, data: Data) -> float:
    """Train, and test: top-1 in percent."""
    engine = SingleEngine(lambda: Task(recipe), recipe, alone())
    fill(engine, outline(recipe).initial_weight)
    layout, prepare = batch_layout(recipe, 1, None), Prepare(recipe)
    for update, micro in enumerate(
        train_batches(data.train, recipe, layout, 0, 0, 0, engine.task.draws)
    ):
        engine.update(prepare.later(micro), recipe.rates(update))
    with torch.no_grad():
        counts = evaluate(engine.predict, data.test, recipe.data, 250, alone())
    return 100 * counts.top1 / counts.images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a few updates, to try it")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=2500)
    parser.add_argument("--rates", type=float, nargs="+", help="learning rates to choose from")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.small:
        options.seeds, options.updates = 2, 5
    if options.rates:
        data = next(fashion_mnist(held_out=True))
        for lr in options.rates:
            for name, model in backbones(data.size).items():
                found = accuracy(recipe_of(data, model, 0, options.updates, lr), data)
                print(f"lr {lr:g}, {data.name}, {name}: {found:.2f}", flush=True)
        return
    sets = [digits()] if options.small else [digits(), *fashion_mnist()]
    pairs_of: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for seed in range(options.seeds):
        for data in sets:
            for name, model in backbones(data.size).items():
                began = time.perf_counter()
                plain = recipe_of(data, model, seed, options.updates)
                pair = (
                    accuracy(plain, data),
                    accuracy(with_loss(plain, LAMBDA[name]), data),
                )
                pairs_of.setdefault((data.name, name), []).append(pair)
                took = time.perf_counter() - began
                print(f"seed {seed}, {data.name}, {name}: {pair} in {took:.0f} s", flush=True)
    print(
        f"\n| training images | backbone | baseline | + drloc | difference | seeds |\n{'|---' * 6}|"
    )
    for (images, name), pairs in pairs_of.items():
        columns = (*zip(*pairs, strict=True), [after - before for before, after in pairs])
        cells = [f"{mean(column):.2f} ± {stdev(column):.2f}" for column in columns]
        print(f"| {images} | {name} | {' | '.join(cells)} | {len(pairs)} |")


if __name__ == "__main__":
    main()
