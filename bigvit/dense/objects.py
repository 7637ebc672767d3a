"""A checkpoint's average precision, and what it predicts of single images."""

from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from bigvit.data.sources.coco import CocoSource
from bigvit.data.workers import workers_for
from bigvit.dense.average_precision import Seen, average_precision
from bigvit.dense.of_checkpoint import opened
from bigvit.ranks.joining import alone


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
    said, task, source = opened(path, data_root, None, ema)
    test_set = cast(CocoSource, source)
    if most is not None:
        test_set = test_set.first(most)
    with torch.no_grad():
        how: dict[str, Any] = {} if seen is None else {"seen": partial(seen, test_set)}
        more = task.recipe.data, batch_size, alone(), workers_for(workers)
        found = average_precision(task.predictions, test_set, *more, **how)
    speed = {"images_per_second": found.images / found.seconds}
    return {**said, **found.as_json(), **speed}
