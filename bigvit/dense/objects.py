"""A checkpoint's average precision, and what it predicts of single images."""

from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from bigvit.checkpoint.trained import trained
from bigvit.data.sources import open_source
from bigvit.data.sources.coco import CocoSource
from bigvit.data.workers import workers_for
from bigvit.dense.average_precision import Seen, average_precision
from bigvit.ranks.joining import alone
from bigvit.task import DTYPES


def evaluate_objects(
    path: Path,
    batch_size: int,
    data_root: Path | None = None,
    workers: int | None = None,
    ema: bool = False,
    most: int | None = None,
    seen: Seen | None = None,
) -> dict[str, Any]:
    """Evaluate a checkpoint, or a run folder's newest, in this process alone, and say which one it
    was.

    Args:
        ema: the average of the weights instead of them.
        most: images that are looked at, the first ones; None: all.
        seen: is told of each image, and of what is predicted in it.

    Raises:
        Damaged: no checkpoint is whole.
        ValueError: the data set is not there or not the recipe's.
    """
    checkpoint, manifest, task = trained(path, None, ema)
    recipe = task.recipe
    test_set = cast(CocoSource, open_source(recipe.data, "test", data_root))
    if len(test_set.classes) != recipe.data.classes:
        raise ValueError(
            f"the test set has {len(test_set.classes):,} classes, and the run "
            f"{recipe.data.classes:,}"
        )
    if most is not None:
        test_set = test_set.first(most)
    ranks = alone()
    task.to(ranks.device, DTYPES[recipe.precision])
    with torch.no_grad():
        how: dict[str, Any] = {} if seen is None else {"seen": partial(seen, test_set)}
        more = ranks, workers_for(workers)
        found = average_precision(task.predictions, test_set, recipe.data, batch_size, *more, **how)
    return {
        "checkpoint": str(checkpoint),
        "update": manifest.update,
        "weights": "ema" if ema else "last",
        "image_size": recipe.data.image_size,
        **found.as_json(),
        "images_per_second": found.images / found.seconds,
    }
