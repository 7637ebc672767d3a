"""A trained model from its checkpoint, to be looked at."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bigvit.checkpoint.manifest import Manifest
from bigvit.checkpoint.model import read_checkpoint
from bigvit.checkpoint.weights import fit, given_of
from bigvit.recipe import Images, ImageSize, Recipe
from bigvit.recipe.check import check_recipe
from bigvit.task import Task


class Trained(NamedTuple):
    """A checkpoint, and its task in float32, unless it was dispatched."""

    checkpoint: Path
    manifest: Manifest
    task: Task


def trained(
    path: Path,
    image_size: ImageSize | None = None,
    ema: bool = False,
    crop_ratio: float | None = None,
) -> Trained:
    """The task of a checkpoint, or of a run folder's newest.

    Args:
        image_size: another resolution than the recipe's; positions are resampled.
        ema: the average of the weights instead of them.
        crop_ratio: another crop ratio than the recipe's, where test images are cropped.

    Raises:
        Damaged: no checkpoint is whole.
        ValueError: the size does not fit the model, or there is no average.
    """
    found = read_checkpoint(path, ema)
    recipe = looked_at(found.recipe, image_size, crop_ratio)
    task = Task(recipe, following=False)
    heads = {name: w for name, w in found.weights.items() if name.startswith("heads.")}
    task.load_state_dict(heads, strict=False)
    grid = recipe.model.grid(recipe.data.image_size)
    fit(given_of(found.recipe, found.model), task.model, grid, recipe.resampling)
    return Trained(found.checkpoint, found.manifest, task)


def looked_at(recipe: Recipe, image_size: ImageSize | None, crop_ratio: float | None) -> Recipe:
    """A recipe at another resolution or crop ratio, None for its own.

    Raises:
        ValueError: one of them does not fit.
    """
    changed = {"image_size": image_size, "test_crop_ratio": crop_ratio}
    changed = {name: value for name, value in changed.items() if value is not None}
    if "test_crop_ratio" in changed and not isinstance(recipe.data, Images):
        raise ValueError("--crop-ratio: the images of this recipe are not cropped; leave it out")
    recipe = replace(recipe, data=replace(recipe.data, **changed))
    check_recipe(recipe)
    return recipe
