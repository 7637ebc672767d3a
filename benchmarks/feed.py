"""How fast images come onto a device from the host's cores: ours, NVIDIA DALI's pipeline, and
torchvision's decoder on the card. A part of benchmarks/gpu.py.

JPEGs of about 50 KB in memory, at ImageNet's usual 500 x 375, become normalised images of the
recipe's size: decoded, cropped at random (bicubic), mirrored. Ours has 3-Augment and colour jitter
besides, on the device; DALI's a twist of colours, torchvision's nothing. Shapes: B images.
"""

# pyright: reportMissingImports=false
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Row
from bigvit.data.batch import Draws
from bigvit.data.decode import Photo
from bigvit.data.loader import train_batches
from bigvit.data.prepare import Prepare
from bigvit.recipe import Layout, Recipe

MOST = 16  # cores
Make = Callable[[], object]  # makes the next B images


class InMemory:
    """JPEGs as a source that has each of them many times."""

    classes = ["one"]

    def __init__(self, contents: list[bytes], images: int) -> None:
        self.contents, self.targets = contents, np.zeros(images, np.int64)

    def __len__(self) -> int:
        return len(self.targets)

    def open(self, index: int) -> Photo:
        return Photo(self.contents[index % len(self.contents)], str(index))


@contextmanager
def ours(recipe: Recipe, contents: list[bytes], device: torch.device, cores: int) -> Iterator[Make]:
    source: Any = InMemory(contents, recipe.data.train_images)
    layout = Layout(world=1, micro_batch=recipe.batch_size, accumulation=1)
    batches = train_batches(
        source, recipe, layout, 0, cores, 0, lambda number, span: Draws(None, ()), on_device=True
    )
    prepare = Prepare(recipe, device)
    with closing(batches):  # type: ignore  # a generator, whose processes end with it
        yield lambda: prepare(next(batches)[0])


@contextmanager
def dali(recipe: Recipe, contents: list[bytes], device: torch.device, cores: int) -> Iterator[Make]:
    if device.type != "cuda":
        raise RuntimeError("there is no GPU")
    from nvidia.dali import fn, pipeline_def, types

    data: Any = recipe.data
    size, side, number = recipe.batch_size, data.image_size, count()
    arrays = [np.frombuffer(content, np.uint8) for content in contents]

    def files() -> list[Any]:
        return [arrays[next(number) % len(arrays)] for _ in range(size)]

    @pipeline_def(batch_size=size, num_threads=cores, device_id=device.index or 0)
    def built() -> Any:
        images = fn.decoders.image_random_crop(
            fn.external_source(source=files), device="mixed", output_type=types.RGB
        )
        images = fn.resize(
            images, size=(side, side), interp_type=types.INTERP_CUBIC, antialias=True
        )
        low, high = 1 - data.augment.color_jitter, 1 + data.augment.color_jitter
        strength = {
            name: fn.random.uniform(range=(low, high))
            for name in ("brightness", "contrast", "saturation")
        }
        return fn.crop_mirror_normalize(
            fn.color_twist(images, **strength),
            mirror=fn.random.coin_flip(),
            mean=[255 * each for each in data.mean],
            std=[255 * each for each in data.std],
        )

    pipeline = built()
    pipeline.build()
    yield pipeline.run


@contextmanager
def torchvisions(
    recipe: Recipe, contents: list[bytes], device: torch.device, cores: int
) -> Iterator[Make]:
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms import v2

    data: Any = recipe.data
    each = v2.Compose(
        [
            v2.RandomResizedCrop(
                data.image_size, data.crop.scale, interpolation=v2.InterpolationMode.BICUBIC
            ),
            v2.RandomHorizontalFlip(),
        ]
    )
    finish = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(data.mean, data.std)])
    files = [torch.frombuffer(bytearray(content), dtype=torch.uint8) for content in contents]
    batch = [files[i % len(files)] for i in range(recipe.batch_size)]

    def make() -> object:
        images: Any = decode_jpeg(batch, ImageReadMode.RGB, device=device)
        return finish(torch.stack([each(image) for image in images]))

    yield make


def fed(recipe: Recipe, device: torch.device, small: bool, deadline: float) -> list[Row]:
    """Rows of images a second.

    Args:
        deadline: of time.monotonic(), by which no other is begun.
    """
    from benchmarks.loader import SIZES, files

    size, seconds = (8, 0.0) if small else (256, 6.0)
    recipe = replace(recipe, batch_size=size)
    contents = files(SIZES[0], 4 if small else 16)
    cores = min(MOST, len(os.sched_getaffinity(0)))
    rows = list[Row]()
    for name, way in {
        "ours": ours,
        "DALI": dali,
        "torchvision's decoder on the card": torchvisions,
    }.items():
        what = f"row 11: fed from {cores} cores: images/s, {name}"
        if time.monotonic() > deadline:
            rows.append(Row(what, "-", "no time left"))
            continue
        try:
            with way(recipe, contents, device, cores) as make:
                rows.append(Row(what, f"{rate(make, size, cores, seconds, device):.0f}"))
        except Exception as error:  # whatever a peer that is not there raises, or one that is
            if name == "ours":
                raise
            said = str(error).strip().splitlines() or [""]
            rows.append(Row(what, "-", f"{type(error).__name__}: {said[0]}"))
    return rows


def rate(make: Make, size: int, cores: int, seconds: float, device: torch.device) -> float:
    """Images a second, once every core has made its first batch."""

    def whole(batches: int) -> None:
        for _ in range(batches):
            make()
        if device.type != "cpu":
            torch.accelerator.synchronize()

    whole(cores)
    began, made = time.perf_counter(), 0
    while made == 0 or time.perf_counter() - began < seconds:
        whole(2)
        made += 2 * size
    return made / (time.perf_counter() - began)
