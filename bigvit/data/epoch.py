"""An epoch's images as a model takes them, for those who train by a loop of their own."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from bigvit.data.class_weights import labels_for, weights_for
from bigvit.data.loader import Draw, test_batches, train_batches
from bigvit.data.prepare import Inputs, Prepare
from bigvit.data.scenes import standing_of
from bigvit.data.sources import Source
from bigvit.recipe import Recipe, batch_layout


@dataclass(frozen=True)
class Loader:
    """Batches in one process; each time it is iterated the same ones."""

    source: Source
    recipe: Recipe
    workers: int  # processes that decode
    device: str  # where the inputs are made, as torch names it
    draws: Draw | None  # a task's, for training images; None for test images
    epoch: int = 0

    @property
    def classes(self) -> list[str]:
        """Their names, in the order of their numbers."""
        return list(self.source.classes)

    def __len__(self) -> int:
        if self.draws is None:
            standing = standing_of(self.source, self.recipe.data)
            if standing is None:
                return -(-len(self.source) // self.recipe.batch_size)
            kinds = np.bincount(standing, minlength=2)
            return int((-(-kinds // self.recipe.batch_size)).sum())
        return self.recipe.updates_per_epoch

    def __iter__(self) -> Iterator[Inputs]:
        return self._tested() if self.draws is None else self._trained(self.draws)

    def _trained(self, draws: Draw) -> Iterator[Inputs]:
        device, weights = torch.device(self.device), weights_for(self.recipe, self.source)
        labels = labels_for(self.recipe, self.source)
        prepare, count = Prepare(self.recipe, device, weights=weights, labels=labels), len(self)
        layout = batch_layout(self.recipe, 1, None)
        batches = train_batches(
            self.source, self.recipe, layout, 0, self.workers, self.epoch * count, draws
        )
        for (batch,) in islice(batches, count):
            yield prepare(batch)

    def _tested(self) -> Iterator[Inputs]:
        recipe, prepare = self.recipe, Prepare(self.recipe, torch.device(self.device))
        batches = test_batches(self.source, recipe.data, recipe.batch_size, 0, 1, self.workers)
        for batch in batches:
            names = ("images", "targets", "labels", "sizes")
            each = {name: getattr(batch, name) for name in names}
            kept = {name: x[batch.valid] for name, x in each.items() if x is not None}
            yield prepare(batch._replace(**kept))
