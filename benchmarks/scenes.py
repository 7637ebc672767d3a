"""Scenes with exact labels: shapes cut out of photographs and pasted upon another.

Real pictures with true masks are few where nothing is downloaded. Here each pixel's class is known
as it was made: a class is a shape with a cast of colour, whatever photograph it is cut out of.
Photographs of test scenes occur in no training scene. All of it is a function of a number.

Shapes: H x W pixels.
"""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import skimage.data
from numpy.typing import NDArray
from PIL import Image

from bigvit import keyed_random

CLASSES = "background", "disc", "square", "triangle", "ring"
CASTS = {
    "disc": (1.35, 0.75, 0.75),
    "square": (0.75, 1.25, 0.75),
    "triangle": (0.75, 0.75, 1.35),
    "ring": (1.25, 1.2, 0.6),
}
"""What red, green and blue of a shape are multiplied by."""
PHOTOGRAPHS = {
    "train": (
        *("astronaut", "cat", "coins", "grass", "gravel", "hubble_deep_field"),
        *("immunohistochemistry", "rocket"),
    ),
    "test": ("camera", "coffee", "brick", "motorcycle"),
}
"""All of them lie in scikit-image's package."""
SIDES = 72, 120  # pixels of a scene
RADII = 16, 30  # of a shape: half of what it extends
MOST = 5  # shapes in a scene
SEEN = 0.5  # share of a shape that others leave to be seen, at least, or it is not pasted over

Split = Literal["train", "test"]


class Scene(NamedTuple):
    """A picture, and what is in it."""

    pixels: NDArray[np.uint8]  # (H, W, 3)
    labels: NDArray[np.uint8]  # (H, W) classes; 0 is the background
    masks: list[NDArray[np.bool_]]  # (H, W) of each shape, what is seen of it
    classes: list[int]  # of each shape


@cache
def photograph(name: str) -> NDArray[np.uint8]:
    """One of scikit-image's (H, W, 3)."""
    if name == "motorcycle":
        pixels = skimage.data.stereo_motorcycle()[0]
    else:
        pixels = getattr(skimage.data, name)()
    return np.stack([pixels] * 3, -1) if pixels.ndim == 2 else pixels[..., :3]


def inside(shape: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether points lie in a shape of radius 1 around 0."""
    radius = np.hypot(x, y)
    match shape:
        case "disc":
            return radius < 1
        case "square":
            return np.maximum(abs(x), abs(y)) < 0.8
        case "triangle":
            return np.all([y < 0.6, 1.7 * abs(x) - y < 1.0], axis=0)
        case "ring":
            return (radius < 1) & (radius > 0.55)
        case _:
            raise ValueError(shape)


def make(split: Split, number: int, seed: int = 0) -> Scene:
    """A scene of a split's photographs."""
    drawn = iter(keyed_random.uniform(8 + 8 * MOST, "scene", split, seed, number).tolist())
    low, high = SIDES
    height, width = (low + int(next(drawn) * (high - low + 1)) for _ in range(2))
    names = PHOTOGRAPHS[split]
    ground = int(next(drawn) * len(names))
    pixels = _cut(photograph(names[ground]), height, width, next(drawn), next(drawn)).copy()
    labels = np.zeros((height, width), np.uint8)
    count = 1 + int(next(drawn) * MOST)
    whole, classes, order = list[NDArray[np.bool_]](), list[int](), np.full((height, width), -1)
    for _ in range(count):
        own = 1 + int(next(drawn) * (len(CLASSES) - 1))
        of = (ground + 1 + int(next(drawn) * (len(names) - 1))) % len(names)
        radius = RADII[0] + next(drawn) * (RADII[1] - RADII[0])
        x, y = (0.5 * radius + next(drawn) * (side - radius) for side in (width, height))
        turn, u, v = next(drawn) * 2 * math.pi, next(drawn), next(drawn)
        rows, columns = np.mgrid[:height, :width] + 0.5
        across, down = (columns - x) / radius, (rows - y) / radius
        turned = (
            across * math.cos(turn) + down * math.sin(turn),
            down * math.cos(turn) - across * math.sin(turn),
        )
        mask = inside(CLASSES[own], *turned)
        left = [(order == i) & ~mask for i in range(len(whole))]
        if any(one.sum() < SEEN * all.sum() for one, all in zip(left, whole, strict=True)):
            continue
        order[mask], labels[mask] = len(whole), own
        cut = _cut(photograph(names[of]), height, width, u, v)[mask] * np.array(CASTS[CLASSES[own]])
        pixels[mask] = cut.clip(0, 255).astype(np.uint8)
        whole.append(mask)
        classes.append(own)
    return Scene(pixels, labels, [order == i for i in range(len(whole))], classes)


def _cut(
    pixels: NDArray[np.uint8], height: int, width: int, u: float, v: float
) -> NDArray[np.uint8]:
    top, left = int(u * (len(pixels) - height + 1)), int(v * (pixels.shape[1] - width + 1))
    return pixels[top : top + height, left : left + width]


def write_ade20k(root: Path, train: int, test: int, seed: int = 0) -> Path:
    """Scenes in ADE20K's folders, where they are not there yet; 0 in their maps is a class."""
    named = "\n".join(f"{i + 1}\t0\t0\t0\t{name}" for i, name in enumerate(CLASSES))
    each: Sequence[tuple[Split, str, int]] = (
        ("train", "training", train),
        ("test", "validation", test),
    )
    for split, folder, count in each:
        images, maps = root / "images" / folder, root / "annotations" / folder
        for below in (images, maps):
            below.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            scene, name = make(split, number, seed), f"scene_{number:05d}"
            Image.fromarray(scene.labels).save(maps / f"{name}.png")
            Image.fromarray(scene.pixels).save(images / f"{name}.jpg", quality=92)
    (root / "objectInfo150.txt").write_text(f"Idx\tRatio\tTrain\tVal\tName\n{named}\n")
    return root


def write_crops(root: Path, each: int, test: int, side: int = 96) -> Path:
    """Class folders of crops of the training photographs: what a trunk is pre-trained on."""
    for split, count in (("train", each), ("val", test)):
        for name in PHOTOGRAPHS["train"]:
            folder = root / split / name
            folder.mkdir(parents=True, exist_ok=True)
            for i in range(count):
                u, v = keyed_random.uniform(2, "crop", split, name, i).tolist()
                pixels = _cut(photograph(name), side, side, u, v)
                Image.fromarray(pixels).save(folder / f"{i:03d}.jpg", quality=92)
    return root
