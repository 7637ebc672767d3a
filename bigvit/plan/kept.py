"""What objectives keep beside weights, Grafit's memory and DINO's centre: bytes, and what is sent
for it. docs/plan.md has the formulas. No torch here."""

from collections.abc import Iterator
from typing import NamedTuple

from bigvit.plan.weights import WIDE
from bigvit.recipe import Dino, Grafit, Layout, Recipe

NUMBER = 8
"""Bytes of an image's number, or its class."""

AT_ONCE, COSINE = 2**24, 20
"""Cosines that are in memory at once, as `bigvit.objectives.memory` has it, and bytes of each with
what follows from it."""


class Remembered(NamedTuple):
    """A memory of embeddings."""

    images: int
    dim: int  # numbers of an embedding


def memories(recipe: Recipe) -> Iterator[Remembered]:
    """Those of a recipe's objectives."""
    images, width = recipe.data.train_images, recipe.model.maps(recipe.data.image_size)[-1][0]
    for each in recipe.objectives:
        if isinstance(each, Grafit) and each.knn:
            yield Remembered(images, each.embedding(width))


def _centres(recipe: Recipe) -> int:
    """Numbers of all centres."""
    return sum(each.outputs for each in recipe.objectives if isinstance(each, Dino))


def remembered_bytes(recipe: Recipe, layout: Layout) -> int:
    """Bytes of what is kept, of the rank that has most, and of the classes of all images."""
    found = list(memories(recipe))
    rows = sum((-(-each.images // layout.world) + 1) * each.dim for each in found)
    classes = NUMBER * recipe.data.train_images if found else 0
    return WIDE * (rows + _centres(recipe)) + classes


def noted_bytes(recipe: Recipe, layout: Layout) -> int:
    """Bytes of what an update's forward passes note for the end of it."""
    each = sum(WIDE * memory.dim + NUMBER for memory in memories(recipe))
    return layout.batch_size * each + WIDE * _centres(recipe)


def weighing_bytes(recipe: Recipe, layout: Layout) -> int:
    """Bytes that are there while a micro-batch is compared with a memory."""
    queries = layout.world * layout.micro_batch
    each = (min(AT_ONCE, queries * -(-m.images // layout.world)) for m in memories(recipe))
    return COSINE * max(each, default=0)


def gathered_bytes(recipe: Recipe, layout: Layout) -> tuple[int, int]:
    """Bytes of an update's all-gathers, and how many there are: embeddings and numbers of all
    images of a batch, and each rank's two sums for all of them."""
    found = list(memories(recipe))
    size = sum(WIDE * each.dim + NUMBER + 2 * WIDE * layout.world for each in found)
    return layout.batch_size * size, 3 * len(found) * layout.accumulation


def reduced_bytes(recipe: Recipe, layout: Layout) -> tuple[int, int]:
    """Bytes of an update's all-reduces, and how many there are: gradients of all embeddings, and
    centres."""
    found = list(memories(recipe))
    size = layout.batch_size * WIDE * sum(each.dim for each in found)
    centres = sum(isinstance(each, Dino) for each in recipe.objectives)
    return size + WIDE * _centres(recipe), len(found) * layout.accumulation + centres
