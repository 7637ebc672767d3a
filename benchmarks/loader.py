"""Images a second and core, of training images from JPEGs: ours beside timm's and torchvision's.

    python -m benchmarks.loader [--small] [--check]

Row 11 of docs/performance.md. Each decodes the same files in memory, takes random crops (bicubic),
mirrors, applies 3-Augment and colour jitter, and ends with bytes (3, H, W), in one thread. Files
are cut from scikit-image's photographs, at ImageNet's usual 500 x 375, and packed to about 50 and
110 KB.
"""

import io
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data.transforms_factory import create_transform
from torchvision.transforms import v2

from benchmarks.measure import Row, arguments, interleaved, ratio, report
from bigvit.data import augment, photo
from bigvit.data.augment.on_device import numbers_of
from bigvit.data.augment.three_augment import Three
from bigvit.data.decode import Photo
from bigvit.data.photo import Part
from bigvit.recipe import Data, Images
from bigvit.recipe.check import SCALED
from bigvit.recipe.find import find_recipe

SIZES = (50_000, 110_000)  # bytes of a file
GOALS = {126: (2.5, 4.0), 224: (1.8, 3.0)}  # times timm, by the side of the image
JITTER = 0.3


def files(bytes_each: int, count: int) -> list[bytes]:
    """JPEGs of about that many bytes each."""
    from skimage import data

    photographs = [data.astronaut(), data.coffee(), data.chelsea(), data.rocket()]
    found = list[bytes]()
    for i in range(count):
        whole = Image.fromarray(photographs[i % len(photographs)])
        high = 200 + 37 * i % 97
        wide = high * 4 // 3
        left, top = 13 * i % (whole.width - wide), 7 * i % (whole.height - high)
        box = (left, top, left + wide, top + high)
        image = whole.resize((500, 375), Image.Resampling.LANCZOS, box=box)
        found.append(min(map(partial(packed, image), range(50, 100)), key=partial(off, bytes_each)))
    return found


def packed(image: Image.Image, quality: int) -> bytes:
    with io.BytesIO() as file:
        image.save(file, "JPEG", quality=quality, subsampling=0 if quality > 95 else 2)
        return file.getvalue()


def off(wanted: int, content: bytes) -> int:
    return abs(len(content) - wanted)


def ours(data: Data, on_device: bool, contents: list[bytes], number: int) -> object:
    """What a data process does; less where the device does the rest."""
    image = Photo(contents[number % len(contents)], "")
    drawn = augment.draw(data, 0, 0, number, image.size)
    scaled = isinstance(data, Images) and data.decode == "scaled"
    if on_device and isinstance(drawn.augment, Three):
        pixels = augment.apply(image, drawn._replace(augment=None), scaled)
        return pixels, numbers_of(drawn.augment)
    return augment.apply(image, drawn, scaled)


def theirs(transform: Callable[[Any], object], contents: list[bytes], number: int) -> object:
    file = io.BytesIO(contents[number % len(contents)])
    return transform(Image.open(file).convert("RGB"))


def each(one: Callable[[int], object], count: int) -> None:
    for i in range(count):
        one(i)


def torchvisions(side: int) -> Callable[[Any], object]:
    """DeiT III's transforms of torchvision's parts, on tensors of bytes."""
    return v2.Compose(
        [
            v2.PILToTensor(),
            v2.RandomResizedCrop(side, (0.08, 1), interpolation=v2.InterpolationMode.BICUBIC),
            v2.RandomHorizontalFlip(),
            v2.RandomChoice(
                [
                    v2.Grayscale(3),
                    v2.RandomSolarize(128, p=1),
                    v2.GaussianBlur(9, (0.1, 2.0)),
                ]
            ),
            v2.ColorJitter(JITTER, JITTER, JITTER),
        ]
    )


def beside(side: int, small: bool) -> list[Row]:
    """Ours beside both, at a side of the image."""
    recipe = find_recipe("deit3_h14_in1k_126")[1]
    data = replace(recipe.data, image_size=side)
    timms: Any = create_transform(
        (3, side, side),
        is_training=True,
        use_prefetcher=True,
        color_jitter=JITTER,
        auto_augment="3a",
        interpolation="bicubic",
    )
    rows = list[Row]()
    count, rounds = (4, 2) if small else (32, 21)
    for size in SIZES:
        contents = files(size, count)
        runs = {
            "ours": partial(ours, data, False, contents),
            "ours, rest on the device": partial(ours, data, True, contents),
            "timm": partial(theirs, timms, contents),
            "torchvision": partial(theirs, torchvisions(side), contents),
        }
        if side <= SCALED:
            runs["ours, scaled, rest on the device"] = partial(
                ours, replace(data, decode="scaled"), True, contents
            )
        seconds = interleaved(
            {name: partial(each, one, count) for name, one in runs.items()}, rounds
        )
        label = f"{side} px, {sum(map(len, contents)) / count / 1000:.0f} KB"
        for name, goal in zip(list(runs)[:2], GOALS[side], strict=True):
            over = ratio(seconds["timm"], seconds[name])
            interval = f"{over.low:.2f} to {over.high:.2f}"
            good = over.value >= goal
            rows.append(
                Row(
                    f"{label}: {name}, over timm", f"{over.value:.2f}", interval, f">= {goal}", good
                )
            )
        for name, took in seconds.items():
            rows.append(Row(f"{label}: images/s, {name}", f"{count / float(np.median(took)):.0f}"))
    return rows


def scaled(side: int, small: bool) -> list[Row]:
    """What scaled decoding changes of photographs, as they are."""
    from skimage import data as photographs
    from sklearn.datasets import load_sample_images

    recipe = find_recipe("deit3_h14_in1k_126")[1]
    data = replace(recipe.data, image_size=side)
    named = ("astronaut", "coffee", "chelsea", "rocket")
    arrays = [getattr(photographs, name)() for name in named] + load_sample_images().images
    contents = [packed(Image.fromarray(pixels), 90) for pixels in arrays]
    differences = list[Any]()
    draws = range(1 if small else 100)
    for i, content in product(draws, contents):
        image = Photo(content, "")
        crop: Any = augment.draw(data, 0, 0, i, image.size).crop
        if crop.part(image.size, True).shrink > 1:
            pair = [np.asarray(crop.apply(image, each)) for each in (True, False)]
            differences.append(np.abs(pair[0].astype(int) - pair[1]))
    label, count = f"{side} px: scaled decoding", len(draws) * len(contents)
    mean, largest = np.mean(differences), np.max(differences)
    return [
        Row(f"{label}, share of the crops", f"{len(differences) / count:.2f}"),
        Row(f"{label}, of these mean and largest difference of 255", f"{mean:.2f}, {largest}"),
    ]


def steps(side: int, small: bool) -> list[Row]:
    """Milliseconds of an image by step, the floor beside each."""
    recipe = find_recipe("deit3_h14_in1k_126")[1]
    data = replace(recipe.data, image_size=side)
    count, rounds = (4, 2) if small else (32, 21)
    contents, fast = files(SIZES[0], count), photo.extension()
    if fast is None:
        return []
    images = [Photo(content, "") for content in contents]
    drawn = [augment.draw(data, 0, 0, i, image.size) for i, image in enumerate(images)]
    crops: list[Any] = [made.crop for made in drawn]
    parts = [made.part(image.size) for made, image in zip(crops, images, strict=True)]
    cut = [image.part(part) for image, part in zip(images, parts, strict=True)]
    box = (499, 374, 1, 1)  # all coefficients are read for the last pixel, and next to no other
    corner = Part(box, (1, 1), (0, 0, 1, 1), "bicubic")

    def coloured(i: int) -> None:
        made: Any = cut[i]
        drawn[i].augment.apply_fast(fast, made.copy())  # type: ignore

    timed = {
        "draw": lambda i: augment.draw(data, 0, 0, i, images[i].size),
        "decode the crop and resize it": lambda i: images[i].part(parts[i]),
        "  of it coefficients (the floor)": lambda i: images[i].part(corner),
        "3-Augment and jitter": coloured,
        "whole": lambda i: ours(data, False, contents, i),
        "Pillow: decode": lambda i: Image.open(io.BytesIO(contents[i])).convert("RGB"),
        "Pillow: whole": lambda i: augment._applied(images[i].image(), [drawn[i]], [parts[i]]),
    }
    seconds = interleaved(
        {name: lambda one=one: [one(i) for i in range(count)] for name, one in timed.items()},
        rounds,
    )
    return [
        Row(f"{side} px: {name}, ms", f"{1000 * float(np.median(took)) / count:.2f}")
        for name, took in seconds.items()
    ]


def main() -> int:
    chosen = arguments(__doc__ or "")
    torch.set_num_threads(1)
    if reason := photo.without():
        print(reason)
    rows = [row for side in GOALS for row in beside(side, chosen.small)]
    rows += scaled(126, chosen.small)
    rows += [row for side in GOALS for row in steps(side, chosen.small)]
    return report("Training images from JPEGs, one core", rows, chosen.check)


if __name__ == "__main__":
    sys.exit(main())
