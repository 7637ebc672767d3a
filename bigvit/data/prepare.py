"""The step without weights between the loader and an engine: from pixels to what a task takes.

It runs on the device, outside what is sharded. What else a loss is to be told of an image, as a
map of labels or a teacher's answer, is made here, and is one more field of `Targets`.

Shapes: B images, C channels, K classes, H x W cells of the model's grid, V views of an image.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bigvit.data.augment import on_device
from bigvit.data.batch import Batch, Draws
from bigvit.data.class_weights import Weights, asked_by
from bigvit.data.label_maps.cropping import SparseMaps, cropped
from bigvit.data.mix import mix_images, mix_targets, patch_sources
from bigvit.data.objects import Objects
from bigvit.recipe import Data, Images, MixToken, Recipe, ReLabel, TokenLabeling
from bigvit.recipe.objective import ClassWeights

HOST = torch.device("cpu")

Teacher = Callable[[Tensor], Tensor]
"""Images (B, C, H, W) as the student sees them -> logits (B, K) float32."""


NO_WEIGHTS: Mapping[ClassWeights, Tensor] = {}


class Targets(NamedTuple):
    """What the objectives are told of the images."""

    classes: Tensor  # (B,) int64: each image's own class, whatever it was mixed with
    dense: Tensor  # (B, K) float32: shares of the classes, mixed as the images are
    teacher: Tensor | None = None  # (B, K) float32: its logits of the mixed images, if there is one
    # (B, H, W, K) float32: shares of the classes in each cell of each image, by a map of labels or,
    # where an objective is to be told and there is none, by the image's target; MixToken's are of
    # the image that the patch is of
    map: Tensor | None = None
    # (B, K) float32: what a map of labels says of the whole crop, mixed as the images are
    crop: Tensor | None = None
    weights: Mapping[ClassWeights, Tensor] = NO_WEIGHTS  # (K,) float32, by what asks for them
    ids: Tensor | None = None  # (B,) int64: which images of the data set
    every: Tensor | None = None  # (N,) int64: classes of all training images, if they are asked for
    labels: Tensor | None = None  # (B, H, W) int64: each pixel's class, UNTOLD where none is told
    objects: Objects | None = None  # of the images
    sizes: Tensor | None = None  # (B, 2) int64: height and width of what is no filling, pixels


class Inputs(NamedTuple):
    """A micro-batch as a task takes it."""

    images: Tensor  # (B, C, H, W) float32, normalised and mixed
    targets: Targets
    draws: Draws
    number: int  # global batches consumed before this one
    # (B, N) int64: of which image each patch is, where the model mixes them and not the images
    mix: Tensor | None = None
    # of each group of further views, from group 1 (B, V, C, h, w) float32: normalised, never mixed
    views: tuple[Tensor, ...] = ()


def within(sizes: Tensor, shape: Sequence[int]) -> Tensor:
    """Where images are that lie in the upper left corner of something larger (B, H, W), bool.

    Args:
        sizes: height and width of each (B, 2).
        shape: H and W.
    """
    down, across = (
        torch.arange(side, device=sizes.device) < sizes[:, i, None] for i, side in enumerate(shape)
    )
    return down[:, :, None] & across[:, None]


class Normalise:
    """Pixels (..., C, H, W) uint8 -> float32 on the device, of the data's mean 0, deviation 1; and
    0 beyond images (B, C, H, W) of such sizes (B, 2), if they are given."""

    def __init__(self, data: Data, device: torch.device = HOST) -> None:
        self.device = device
        # once: to put them there makes the host wait
        self.mean, self.std = (
            torch.tensor(values, device=device).view(-1, 1, 1) for values in (data.mean, data.std)
        )

    def __call__(self, pixels: Tensor, sizes: Tensor | None = None) -> Tensor:
        images = pixels.to(self.device, non_blocking=True).float()
        images = (images / 255 - self.mean) / self.std
        if sizes is None:
            return images
        return images * within(sizes.to(self.device, non_blocking=True), images.shape[2:])[:, None]


class Ahead:
    """Brings one batch to a device while another is computed there, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = None if device.type == "cpu" else torch.Stream(device)
        self.given: Batch | None = None
        self.there: Batch | None = None

    def begin(self, batch: Batch) -> None:
        """Let the copy begin; on a CPU there is none."""
        if self.stream is not None:
            with self.stream:
                self.given, self.there = batch, batch.to(self.device)

    def take(self, batch: Batch) -> Batch:
        """The batch on the device, for the current stream."""
        given, there, self.given, self.there = self.given, self.there, None, None
        if self.stream is None or there is None or given is not batch:
            return batch.to(self.device)
        current = torch.accelerator.current_stream(self.device)
        current.wait_stream(self.stream)
        there.used_on(current)
        return there


class Prepare:
    """Makes the inputs of a recipe's batches, on a device."""

    def __init__(
        self,
        recipe: Recipe,
        device: torch.device = HOST,
        teacher: Teacher | None = None,
        weights: Weights | None = None,
        labels: NDArray[np.int64] | None = None,
    ) -> None:
        """Args:
        weights: of classes, as `weights_for` makes them; left out: all 1.
        labels: (N,) classes of all training images, as `labels_for` gives them.
        """
        self.normalise = Normalise(recipe.data, device)
        self.classes = torch.arange(recipe.model.num_classes, device=device)
        self.group = recipe.data.mixing_group
        own = recipe.data.mix if isinstance(recipe.data, Images) else None
        self.of_tokens = own if isinstance(own, MixToken) else None
        self.image_size = recipe.data.image_size
        of_patches = [each for each in recipe.objectives if isinstance(each, TokenLabeling)]
        self.mapped = any(each.labels == "map" for each in of_patches)
        self.labelled = bool(of_patches) and not self.mapped
        self.relabelled = any(isinstance(each, ReLabel) for each in recipe.objectives)
        every, given = np.ones(len(self.classes), np.float32), weights or {}
        self.weights: Mapping[ClassWeights, Tensor] = {
            each: torch.from_numpy(given.get(each, every)).to(device)
            for each in asked_by(recipe).values()
        }
        self.every = None if labels is None else torch.from_numpy(labels).to(device)
        self.ahead = Ahead(device)
        self.teacher = teacher
        self.grid = recipe.model.grid(recipe.data.image_size)

    def __call__(self, batch: Batch) -> Inputs:
        """Those of one micro-batch."""
        batch = self.ahead.take(batch)
        images = batch.images
        if batch.varied is not None:
            images = on_device.apply(images, batch.varied)
        images = self.normalise(images, batch.sizes)
        # not one_hot, which has the host look at the targets
        dense = (batch.targets[:, None] == self.classes).float()
        own, crop, mix = dense, None, None
        if self.relabelled and batch.maps is not None:
            crop = cropped(batch.maps, (1, 1), len(self.classes)).flatten(0, 2)
        if self.group is not None and batch.mix is not None:
            if self.of_tokens is None:
                images = mix_images(images, batch.mix, self.group)
            else:
                mix = patch_sources(self.of_tokens, self.image_size, batch.mix)
            dense = mix_targets(own, batch.mix, self.group)
            crop = None if crop is None else mix_targets(crop, batch.mix, self.group)
        answers = None if self.teacher is None else self.teacher(images)
        shares = self._of_patches(batch.maps, own, dense, mix)
        labels = None if batch.labels is None else batch.labels.long()
        of_scene = labels, batch.objects, batch.sizes
        told = answers, shares, crop, self.weights, batch.ids, self.every, *of_scene
        targets = Targets(batch.targets, dense, *told)
        views = tuple(self.normalise(each) for each in batch.views)
        return Inputs(images, targets, batch.draws, batch.number, mix, views)

    def _of_patches(
        self, maps: SparseMaps | None, own: Tensor, mixed: Tensor, mix: Tensor | None
    ) -> Tensor | None:
        """The labels (B, H, W, K) of patches, if any are asked for.

        Args:
            own, mixed: of the images (B, K), before and after they were mixed.
            mix: of which image each patch is (B, N), if not of its own.
        """
        if self.mapped and maps is not None:
            each = cropped(maps, self.grid, len(self.classes)).flatten(1, 2)
            found = each if mix is None else each.gather(0, mix[:, :, None].expand_as(each))
        elif self.labelled:
            one = mixed[:, None].expand(-1, prod(self.grid), -1)
            found = one if mix is None else own[mix]
        else:
            return None
        return found.unflatten(1, self.grid)

    def later(
        self, batches: Sequence[Batch], then: Sequence[Batch] = ()
    ) -> list[Callable[[], Inputs]]:
        """For each micro-batch what makes its inputs when it is called, and then begins to bring
        the next one to the device; after the last one the first of `then`."""
        following = [*batches[1:], *then[:1]]
        pairs = zip_longest(batches, following)
        return [partial(self._one, *pair) for pair in pairs]

    def _one(self, batch: Batch, following: Batch | None) -> Inputs:
        inputs = self(batch)
        if following is not None:
            self.ahead.begin(following)
        return inputs
