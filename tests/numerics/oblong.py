"""Runs on images of any height and width, saved without training, for what reads them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from randomised import randomised
from saving import save
from torch import Tensor

from bigvit.engines.single import SingleEngine
from bigvit.ranks.joining import alone
from bigvit.recipe import (
    ClassToken,
    Images,
    ImageSize,
    RandomResizedCrop,
    Recipe,
    StochasticDepth,
    ViT,
    sides,
)
from bigvit.recipe.find import find_recipe
from bigvit.recipe.store import to_json
from bigvit.task import Task

CLASSES = 5
WIDE = ViT(
    4, 24, 2, 3, 2.0, 1e-1, ClassToken(0), False, StochasticDepth(rate=0.0, group=4), 3, CLASSES
)
DATA = Images(
    dataset="stripes",
    train_images=40,
    test_images=None,
    classes=CLASSES,
    image_size=(16, 64),
    crop=RandomResizedCrop(scale=(0.5, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic"),
    flip=0.5,
    augment=None,
    erasing=0.0,
    repeats=1,
    mix=None,
    mean=(0.5, 0.5, 0.5),
    std=(0.25, 0.25, 0.25),
    test_crop_ratio=1.0,
    decode="exact",
    held_out=0.0,
    views=(),
    level="own",
)


def recipe_of(size: ImageSize, **changes: object) -> Recipe:
    """Patches of 4 x 4 pixels; without training, so nothing else matters."""
    _, digits = find_recipe("digits_vit")
    data = replace(DATA, image_size=size)
    return replace(digits, model=WIDE, data=data, batch_size=8, **changes)  # type: ignore[arg-type]


def task_of(recipe: Recipe, seed: int) -> Task:
    """With random weights that all show in the logits."""
    task = Task(recipe)
    randomised(task, seed)
    return task


def saved(run: Path, recipe: Recipe, *seeds: int, keep: int = 9) -> list[Path]:
    """A run folder with a checkpoint for each seed's weights, numbered from 1."""
    run.mkdir(parents=True, exist_ok=True)
    (run / "recipe.json").write_text('{"run": {"data_root": "None"}}')
    ranks = replace(alone(), device=torch.device("cpu"))
    return [
        save(
            SingleEngine(lambda seed=seed: task_of(recipe, seed), recipe, ranks),
            run / "checkpoints",
            number,
            to_json(recipe),
            keep=keep,
        )
        for number, seed in enumerate(seeds, 1)
    ]


def images(size: ImageSize, count: int = 3) -> Tensor:
    return torch.randn(count, 3, *sides(size), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(model: Callable[..., object], x: Tensor) -> Tensor:
    """Of a model of ours."""
    return model(x).logits  # type: ignore[attr-defined]


def write_images(root: Path, size: tuple[int, int], count: int = 30) -> None:
    """Class folders of noise, all of one size (height, width)."""
    generator = np.random.default_rng(0)
    for number in range(count):
        folder = root / "val" / f"class{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
