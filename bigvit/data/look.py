"""What a data set of one's own is like, by its lists and a sample of its images."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bigvit.data.decode import BadImage
from bigvit.data.sources import open_source
from bigvit.recipe import Images

SAMPLE = 512  # images that are opened
THUMBNAIL = 64  # pixels of a side of what mean and deviation are taken of


class Look(NamedTuple):
    """What was seen of a data set."""

    classes: int
    train: int  # images to train on
    test: int  # images to test on
    held_out: float  # share of the images that these are, where there is no testing split
    fewest: int  # training images of a class
    without: tuple[str, ...]  # classes that have none
    most: int
    side: int  # median of the images' shorter sides, pixels
    sampled: int  # images that were opened
    bad: tuple[str, ...]  # of them, those that cannot be read
    mean: tuple[float, ...]  # of each channel, of values in [0, 1]
    std: tuple[float, ...]


def look(data: Images, root: Path, held_out: float) -> Look:
    """Look at the data at a root.

    Args:
        data: of the recipe to start from.
        held_out: share of the images to test on where there is no testing split.

    Raises:
        ValueError: no data set is recognised there, there is one class, or no image of the sample
            can be read.
    """
    data = replace(data, held_out=0.0)
    try:
        train, test = open_source(data, "train", root), None
        try:
            test = open_source(replace(data, test_images=None), "test", root)
        except ValueError:
            pass
    except ValueError:
        train, test = open_source(replace(data, held_out=held_out), "train", root), None
    if test is None:
        train, test = (
            open_source(replace(data, held_out=held_out), split, root)
            for split in ("train", "test")
        )
    else:
        held_out = 0.0
    if len(train.classes) < 2:
        raise ValueError(
            f"--data-root {root}: there is one class, {train.classes[0]!r}; a classifier needs "
            "two or more: a folder or label each"
        )
    ids = np.linspace(0, len(train) - 1, min(SAMPLE, len(train)), dtype=np.int64)
    sides, bad = list[int](), list[str]()
    total, squares, count = np.zeros(3), np.zeros(3), 0
    for id in ids.tolist():
        try:
            image = train.read(id).convert("RGB")
        except BadImage:
            bad.append(train.name(id))
            continue
        sides.append(min(image.size))
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        pixels = np.asarray(image, np.float64).reshape(-1, 3) / 255
        total, squares = total + pixels.sum(axis=0), squares + np.square(pixels).sum(axis=0)
        count += len(pixels)
    if not count:
        raise ValueError(f"--data-root {root}: none of {len(ids)} images can be read ({bad[0]})")
    mean = total / count
    each = np.bincount(train.targets, minlength=len(train.classes))
    return Look(
        classes=len(train.classes),
        train=len(train),
        test=len(test),
        held_out=held_out,
        fewest=int(each.min()),
        without=tuple(train.classes[i] for i in np.flatnonzero(each == 0).tolist()),
        most=int(each.max()),
        side=int(np.median(sides)),
        sampled=len(ids),
        bad=tuple(bad),
        mean=tuple(mean.round(3).tolist()),
        std=tuple(np.sqrt(squares / count - mean**2).round(3).tolist()),
    )
