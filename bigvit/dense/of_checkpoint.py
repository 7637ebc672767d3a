"""A checkpoint's mean intersection over union."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bigvit.checkpoint.trained import trained
from bigvit.data.pixel_labels import WholeScene
from bigvit.data.sources import Source, open_source
from bigvit.data.workers import workers_for
from bigvit.dense.mean_iou import mean_iou
from bigvit.ranks.joining import alone
from bigvit.recipe import ImageSize
from bigvit.task import DTYPES, Task

Seen = Callable[[Source, WholeScene, Tensor], object]
"""(the test images, one of them, the classes (H, W) that are predicted of its pixels)."""


def spread(images: int, count: int) -> list[int]:
    """Numbers of so many images at most, evenly over all."""
    count = min(count, images)
    return [i * images // count + images // (2 * count) for i in range(count)]


def opened(
    path: Path, data_root: Path | None, image_size: ImageSize | None, ema: bool
) -> tuple[dict[str, Any], Task, Source]:
    """What a checkpoint is called, its task on this process's device, and its test images.

    Raises:
        Damaged: no checkpoint is whole.
        ValueError: the data set is not there or not the recipe's, or a value does not fit.
    """
    checkpoint, manifest, task = trained(path, image_size, ema)
    recipe = task.recipe
    test_set = open_source(recipe.data, "test", data_root)
    if len(test_set.classes) != recipe.data.classes:
        raise ValueError(
            f"the test set has {len(test_set.classes):,} classes, and the run "
            f"{recipe.data.classes:,}"
        )
    task.to(alone().device, DTYPES[recipe.precision])
    said = {
        "checkpoint": str(checkpoint),
        "update": manifest.update,
        "weights": "ema" if ema else "last",
        "image_size": recipe.data.image_size,
    }
    return said, task, test_set


def evaluate_scenes(
    path: Path,
    batch_size: int,
    data_root: Path | None = None,
    workers: int | None = None,
    image_size: ImageSize | None = None,
    ema: bool = False,
    scales: Sequence[float] = (1.0,),
    flips: bool = False,
    most: int | None = None,
    seen: Seen | None = None,
) -> dict[str, Any]:
    """Evaluate a checkpoint, or a run folder's newest, in this process alone, and say which one it
    was.

    Args:
        image_size: windows of another size than the recipe's; positions are resampled.
        ema: the average of the weights instead of them.
        scales: at which each image is seen, as factors of the recipe's.
        flips: whether it is seen mirrored, too.
        most: images that are looked at, as `spread` chooses them; None: all.
        seen: is told of each image, and of the classes that are predicted of its pixels.

    Raises:
        Damaged: no checkpoint is whole.
        ValueError: the data set is not there or not the recipe's, or a value does not fit.
    """
    said, task, test_set = opened(path, data_root, image_size, ema)
    recipe = task.recipe
    with torch.no_grad():
        more = alone(), workers_for(workers)
        how: dict[str, Any] = {"scales": scales, "flips": flips}
        how["only"] = None if most is None else spread(len(test_set), most)
        how |= {} if seen is None else {"seen": partial(seen, test_set)}
        found = mean_iou(task.predictions, test_set, recipe.data, batch_size, *more, **how)
    return {
        **said,
        "scales": list(scales),
        "flips": flips,
        **found.as_json(),
        "images_per_second": found.images / found.seconds,
    }
