"""A trained model from its checkpoint, to be looked at."""

from dataclasses import replace
from pathlib import Path

from bigvit.checkpoint.load import read_model
from bigvit.checkpoint.manifest import Manifest
from bigvit.checkpoint.weights import fit
from bigvit.recipe import Images, ImageSize
from bigvit.recipe.check import check_recipe
from bigvit.recipe.store import recipe_from_json
from bigvit.task import Task


def trained(
    checkpoint: Path,
    image_size: ImageSize | None = None,
    ema: bool = False,
    crop_ratio: float | None = None,
) -> tuple[Manifest, Task]:
    """A checkpoint's manifest and its task, in float32.

    Args:
        image_size: another resolution than the recipe's; positions are resampled.
        ema: the average of the weights instead of them.
        crop_ratio: another crop ratio than the recipe's, where test images are cropped.

    Raises:
        Damaged: the checkpoint is not whole.
        ValueError: the size does not fit the model, or there is no average.
    """
    manifest, weights = read_model(checkpoint, "ema" if ema else "weight")
    recipe = recipe_from_json(manifest.recipe)
    changed = {"image_size": image_size, "test_crop_ratio": crop_ratio}
    changed = {name: value for name, value in changed.items() if value is not None}
    if "test_crop_ratio" in changed and not isinstance(recipe.data, Images):
        raise ValueError("--crop-ratio: the images of this recipe are not cropped; leave it out")
    recipe = replace(recipe, data=replace(recipe.data, **changed))
    check_recipe(recipe)
    task = Task(recipe)
    fit(weights, task.model, recipe.model.grid(recipe.data.image_size))
    return manifest, task
