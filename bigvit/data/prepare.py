"""The step without weights between the loader and an engine: from pixels to what a task takes.

It runs on the device, outside what is sharded. What else a loss is to be told of an image, as a
teacher's answer or a map of labels, is made here, and is one more field of `Targets`.

Shapes: B images, C channels, K classes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bigvit.data.batch import Batch, Draws
from bigvit.data.mix import mix_images, mix_targets
from bigvit.recipe import Data, Recipe

HOST = torch.device("cpu")


class Targets(NamedTuple):
    """What the objectives are told of the images."""

    classes: Tensor  # (B,) int64: each image's own class, whatever it was mixed with
    dense: Tensor  # (B, K) float32: shares of the classes, mixed as the images are


class Inputs(NamedTuple):
    """A micro-batch as a task takes it."""

    images: Tensor  # (B, C, H, W) float32, normalised and mixed
    targets: Targets
    draws: Draws
    number: int  # global batches consumed before this one


class Normalise:
    """Pixels (B, C, H, W) uint8 -> on the device, of the data's mean 0 and deviation 1, float32."""

    def __init__(self, data: Data, device: torch.device = HOST) -> None:
        self.device = device
        # once: to put them there makes the host wait
        self.mean, self.std = (
            torch.tensor(values, device=device).view(1, -1, 1, 1)
            for values in (data.mean, data.std)
        )

    def __call__(self, pixels: Tensor) -> Tensor:
        images = pixels.to(self.device, non_blocking=True).float()
        return (images / 255 - self.mean) / self.std


class Prepare:
    """Makes the inputs of a recipe's batches, on a device."""

    def __init__(self, recipe: Recipe, device: torch.device = HOST) -> None:
        self.normalise = Normalise(recipe.data, device)
        self.classes = torch.arange(recipe.model.num_classes, device=device)
        self.group = recipe.data.mixing_group

    def __call__(self, batch: Batch) -> Inputs:
        """Those of one micro-batch."""
        batch = batch.to(self.classes.device)
        images = self.normalise(batch.images)
        # not one_hot, which has the host look at the targets
        dense = (batch.targets[:, None] == self.classes).float()
        if self.group is not None and batch.mix is not None:
            images = mix_images(images, batch.mix, self.group)
            dense = mix_targets(dense, batch.mix, self.group)
        return Inputs(images, Targets(batch.targets, dense), batch.draws, batch.number)

    def later(self, batches: Sequence[Batch]) -> list[Callable[[], Inputs]]:
        """For each micro-batch what makes its inputs when it is called."""
        return [partial(self, batch) for batch in batches]
