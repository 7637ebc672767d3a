"""Photographs with further views of each, as DINO has them, and digits with some."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pictures

from bigvit.data.sources import Source, open_source
from bigvit.recipe import (
    RandAugment,
    RandomResizedCrop,
    Shift,
    SimpleRandomCrop,
    ThreeAugment,
    ViewAugment,
    Views,
)
from bigvit.recipes.digits import digits_vit

DINO = ViewAugment(
    jitter=0.8,
    brightness=0.4,
    contrast=0.4,
    saturation=0.2,
    hue=0.1,
    grayscale=0.2,
    blur=0.5,
    solarize=0.2,
)
LARGE = RandomResizedCrop(scale=(0.4, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic")
SMALL = RandomResizedCrop(scale=(0.05, 0.4), ratio=(3 / 4, 4 / 3), interpolation="bicubic")
GROUPS = (
    Views(count=2, image_size=24, crop=LARGE, flip=0.5, augment=DINO, erasing=0.25),
    Views(count=3, image_size=(8, 16), crop=SMALL, flip=0.5, augment=None, erasing=0.0),
)
DATA = replace(pictures.DATA, train_images=100, views=GROUPS, image_size=24)
RECIPE = replace(
    pictures.RECIPE,
    data=DATA,
    batch_size=32,
    schedule=replace(pictures.RECIPE.schedule, epochs=2, warmup_epochs=0),
)
"""Three updates an epoch, six in all."""
KINDS: dict[str, tuple[Views, ...]] = {
    "crops": GROUPS,
    "other augmentations": (
        Views(2, 40, LARGE, 0.5, ThreeAugment(color_jitter=0.4), 0.0),
        Views(1, 40, LARGE, 0.5, RandAugment(2, 9.0, 0.5, True), 0.5),
        Views(1, 40, SimpleRandomCrop(padding=4, interpolation="bilinear"), 0.0, DINO, 0.0),
    ),
}

DIGITS = replace(
    digits_vit,
    data=replace(digits_vit.data, augment=Shift(pixels=3), views=2),
    batch_size=32,
    schedule=replace(digits_vit.schedule, epochs=1, warmup_epochs=0),
)


class Counting:
    """A source that counts what is asked of it."""

    def __init__(self, source: Source) -> None:
        self.source, self.opened = source, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def __len__(self) -> int:
        return len(self.source)

    def open(self, index: int) -> Any:
        self.opened += 1
        return self.source.open(index)


def photographs(root: Path) -> Source:
    """The training images of `DATA`, written into a folder."""
    pictures.write_folders(root, "train", pictures.jpegs(100))
    return open_source(DATA, "train", root)
