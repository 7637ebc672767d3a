"""Evaluation: every test image counted once, over any number of ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bigvit.checkpoint.load import read_weights
from bigvit.data.loader import test_batches
from bigvit.data.sources import Source, open_source
from bigvit.engines.ranks import Ranks, alone
from bigvit.recipe.store import recipe_from_json
from bigvit.task import Batch, Task


@dataclass(frozen=True)
class Counts:
    """How many test images had their class among the best one or five logits."""

    images: int
    top1: int
    top5: int

    def as_json(self) -> dict[str, float]:
        """Counts and percentages."""
        return {
            "images": self.images,
            "top1_correct": self.top1,
            "top5_correct": self.top5,
            "top1": 100 * self.top1 / self.images,
            "top5": 100 * self.top5 / self.images,
        }


def evaluate(
    predict: Callable[[Batch], Tensor], source: Source, batch_size: int, ranks: Ranks
) -> Counts:
    """Count what `predict` gets right. Collective: every rank predicts equally often."""
    total = torch.zeros(3, dtype=torch.int64)
    for batch in test_batches(source, batch_size, ranks.rank, ranks.world):
        logits = predict(batch).cpu()
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices
        hits = (best == batch.targets[:, None]) & batch.valid[:, None]
        total += torch.stack([batch.valid.sum(), hits[:, 0].sum(), hits.sum()])
    return Counts(*ranks.sum(total).tolist())


def evaluate_checkpoint(checkpoint: Path, batch_size: int) -> dict[str, Any]:
    """Evaluate a checkpoint in this process alone, and say which one it was.

    Raises:
        Damaged: the checkpoint is not whole.
    """
    manifest, weights = read_weights(checkpoint)
    recipe = recipe_from_json(manifest.recipe)
    ranks = alone()
    task = Task(recipe).to(ranks.device)
    task.load_state_dict(weights)
    if recipe.precision == "bf16":
        task.to(torch.bfloat16)
    test_set = open_source(recipe.data, "test")
    with torch.no_grad():
        counts = evaluate(lambda b: task.predict(b.to(ranks.device)), test_set, batch_size, ranks)
    return {"checkpoint": str(checkpoint), "update": manifest.update, **counts.as_json()}
