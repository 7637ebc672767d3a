"""Evaluation: every test image counted once, over any number of ranks."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bigvit.checkpoint.load import read_weights
from bigvit.data.bad import gather
from bigvit.data.loader import test_batches, workers_for
from bigvit.data.sources import Source, open_source
from bigvit.engines.ranks import Ranks, alone
from bigvit.recipe import Data
from bigvit.recipe.store import recipe_from_json
from bigvit.task import Batch, Task


@dataclass(frozen=True)
class Counts:
    """How many test images had their class among the best one or five logits."""

    images: int  # that could be read
    top1: int
    top5: int
    bad: tuple[str, ...]  # names of those that could not be read
    seconds: float = field(compare=False)  # that it took

    def as_json(self) -> dict[str, float]:
        """Counts and percentages."""
        images = max(1, self.images)
        return {
            "images": self.images,
            "bad_images": len(self.bad),
            "top1_correct": self.top1,
            "top5_correct": self.top5,
            "top1": 100 * self.top1 / images,
            "top5": 100 * self.top5 / images,
        }


def evaluate(
    predict: Callable[[Batch], Tensor],
    source: Source,
    data: Data,
    batch_size: int,
    ranks: Ranks,
    workers: int = 0,
) -> Counts:
    """Count what `predict` gets right. Collective: every rank predicts equally often.

    Args:
        workers: processes of this rank that decode.
    """
    began = time.perf_counter()
    total, bad = torch.zeros(3, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    for batch in test_batches(source, data, batch_size, ranks.rank, ranks.world, workers):
        logits = predict(batch).cpu()
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices
        hits = (best == batch.targets[:, None]) & batch.valid[:, None]
        total += torch.stack([batch.valid.sum(), hits[:, 0].sum(), hits.sum()])
        bad = torch.cat([bad, batch.bad])
    images, top1, top5 = ranks.sum(total).tolist()
    names = tuple(source.name(id) for id in gather(bad.unique(), ranks).tolist())
    return Counts(images, top1, top5, names, time.perf_counter() - began)


def evaluate_checkpoint(
    checkpoint: Path, batch_size: int, data_root: Path | None = None, workers: int | None = None
) -> dict[str, Any]:
    """Evaluate a checkpoint in this process alone, and say which one it was.

    Raises:
        Damaged: the checkpoint is not whole.
        ValueError: the data set is not there, or not the recipe's.
    """
    manifest, weights = read_weights(checkpoint)
    recipe = recipe_from_json(manifest.recipe)
    test_set = open_source(recipe.data, "test", data_root)
    ranks = alone()
    task = Task(recipe).to(ranks.device)
    task.load_state_dict(weights)
    if recipe.precision == "bf16":
        task.to(torch.bfloat16)
    with torch.no_grad():
        counts = evaluate(
            lambda b: task.predict(b.to(ranks.device)),
            test_set,
            recipe.data,
            batch_size,
            ranks,
            workers_for(workers),
        )
    return {
        "checkpoint": str(checkpoint),
        "update": manifest.update,
        **counts.as_json(),
        "images_per_second": counts.images / counts.seconds,
    }
