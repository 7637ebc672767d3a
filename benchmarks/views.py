"""Images a second and core of a loader with several views of each, decoded once, and each again.

    python -m benchmarks.views [--small] [--check]

The table of docs/views.md. Three loaders with one data process read the same JPEGs from a folder,
500 x 375, packed to about 110 KB (`benchmarks.loader`): ours, ours as it was without decoding at
once (each view opens, reads and decodes its file again), and a data set of torchvision's transforms
in torch's DataLoader, which decodes a file once by Pillow and varies it view by view, as DINO's and
BYOL's code does. All end with bytes, in micro-batches of 32.

The clock is that of all cores that the rank and its data process used, starting it included: on a
shared machine it varies less than that on the wall.
"""

import resource
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.loader import files
from benchmarks.measure import Row, arguments, interleaved, ratio, report
from bigvit.data import augment, photo
from bigvit.data.decode import Photo
from bigvit.data.loader import train_batches
from bigvit.data.sources import open_source
from bigvit.engines.build import outline
from bigvit.recipe import (
    Images,
    RandomResizedCrop,
    Recipe,
    StochasticDepth,
    ViewAugment,
    Views,
    batch_layout,
)
from bigvit.recipe.find import find_recipe

BYTES = 110_000  # of a file
MICRO = 32
GOALS = {"Grafit": (1.1, 1.5), "DINO": (1.5, 1.5)}  # over each view again, over torchvision
VARIED = ViewAugment(
    jitter=0.8,
    brightness=0.4,
    contrast=0.4,
    saturation=0.2,
    hue=0.1,
    grayscale=0.2,
    blur=0.5,
    solarize=0.1,
)
RATIO = (3 / 4, 4 / 3)


def crop(low: float, high: float) -> RandomResizedCrop:
    return RandomResizedCrop(scale=(low, high), ratio=RATIO, interpolation="bicubic")


KINDS: dict[str, tuple[Views, ...]] = {
    # beside the image itself, of 224 pixels and varied alike
    "Grafit": (Views(4, 224, crop(0.2, 1.0), 0.5, VARIED, 0.0),),
    "DINO": (
        Views(1, 224, crop(0.4, 1.0), 0.5, VARIED, 0.0),
        Views(8, 96, crop(0.05, 0.4), 0.5, VARIED, 0.0),
    ),
}


def recipe_of(views: tuple[Views, ...], images: int) -> Recipe:
    recipe = find_recipe("deit3_b16_in1k_224")[1]
    assert isinstance(recipe.data, Images)
    first = views[0]
    data = replace(
        recipe.data,
        train_images=images,
        classes=2,
        image_size=224,
        crop=first.crop,
        augment=VARIED,
        repeats=1,
        mix=None,
        views=views,
    )
    model = replace(recipe.model, drop_path=StochasticDepth(rate=0.0, group=1))
    return replace(recipe, model=model, data=data, batch_size=MICRO)


def ours(recipe: Recipe, root: Path) -> int:
    """An epoch; images."""
    source, layout = open_source(recipe.data, "train", root), batch_layout(recipe, 1, MICRO)
    draws, count = outline(recipe).draws, 0
    batches = train_batches(source, recipe, layout, 0, 1, 0, draws)
    for _ in range(recipe.updates_per_epoch):
        (batch,) = next(batches)
        count += len(batch.images)
    batches.close()
    return count


def again(recipe: Recipe, root: Path) -> int:
    """The same, every view from a file that is opened and decoded anew."""
    once = augment.apply_all

    def each_again(image: Any, drawn: Sequence[augment.Drawn], scaled: bool = False) -> list[Any]:
        path = next(root.glob(f"train/*/{Path(image.name).name}"))
        files = (Photo(path.read_bytes(), image.name) for _ in drawn)
        return [once(file, [each], scaled)[0] for file, each in zip(files, drawn, strict=True)]

    augment.apply_all = each_again
    try:
        return ours(recipe, root)
    finally:
        augment.apply_all = once


class MultiCrop:
    """torchvision's transforms of a Pillow image, for each view."""

    def __init__(self, views: tuple[Views, ...]) -> None:
        first = Views(1, 224, views[0].crop, 0.5, VARIED, 0.0)
        self.each = [self._one(view) for view in (first, *views) for _ in range(view.count)]

    def _one(self, view: Views) -> Callable[[Image.Image], Any]:
        it, cut = VARIED, view.crop
        assert isinstance(cut, RandomResizedCrop)
        jitter = transforms.ColorJitter(it.brightness, it.contrast, it.saturation, it.hue)
        bicubic = transforms.InterpolationMode.BICUBIC
        return transforms.Compose(
            [
                transforms.RandomResizedCrop(view.image_size, cut.scale, interpolation=bicubic),
                transforms.RandomHorizontalFlip(view.flip),
                transforms.RandomApply([jitter], it.jitter),
                transforms.RandomGrayscale(it.grayscale),
                transforms.RandomApply([transforms.Lambda(blurred)], it.blur),
                transforms.RandomApply([transforms.Lambda(ImageOps.solarize)], it.solarize),
                transforms.PILToTensor(),
            ]
        )

    def __call__(self, image: Image.Image) -> list[Any]:
        return [one(image) for one in self.each]


def blurred(image: Image.Image) -> Image.Image:
    radius = float(torch.empty(1).uniform_(0.1, 2.0))
    return image.filter(ImageFilter.GaussianBlur(radius))


def torchvisions(views: tuple[Views, ...], root: Path) -> int:
    """An epoch of a data set as the papers' code has it."""
    made = ImageFolder(str(root / "train"), MultiCrop(views))
    loader = DataLoader(made, MICRO, shuffle=True, num_workers=1, prefetch_factor=4, drop_last=True)
    return sum(len(targets) for _, targets in loader)


def written(root: Path, count: int) -> None:
    for i, content in enumerate(files(BYTES, count)):
        folder = root / "train" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:04}.jpg").write_bytes(content)


def core_seconds() -> float:
    """Of this process and of those that it started, which have ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def rows_of(kind: str, root: Path, count: int, rounds: int) -> Iterator[Row]:
    views = KINDS[kind]
    recipe = recipe_of(views, count)
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: ours(recipe, root),
        "ours, each view again": lambda: again(recipe, root),
        "torchvision": lambda: torchvisions(views, root),
    }
    seconds = interleaved(runs, rounds, clock=core_seconds)
    sizes = " + ".join(f"{view.count} x {view.image_size}" for view in views)
    label = f"{kind}, 1 x 224 + {sizes}"
    for name, goal in zip(list(runs)[1:], GOALS[kind], strict=True):
        over = ratio(seconds[name], seconds["ours"])
        interval = f"{over.low:.2f} to {over.high:.2f}"
        of = over.value >= goal
        yield Row(f"{label}: ours over {name}", f"{over.value:.2f}", interval, f">= {goal}", of)
    for name, took in seconds.items():
        yield Row(f"{label}: images/s and core, {name}", f"{count / float(np.median(took)):.1f}")


def main() -> int:
    chosen = arguments(__doc__ or "")
    torch.set_num_threads(1)
    if reason := photo.without():
        print(reason)
    count, rounds = (MICRO, 1) if chosen.small else (4 * MICRO, 5)
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder), count)
        rows = [row for kind in KINDS for row in rows_of(kind, Path(folder), count, rounds)]
    return report("Images with several views, one data process", rows, chosen.check)


if __name__ == "__main__":
    sys.exit(main())
