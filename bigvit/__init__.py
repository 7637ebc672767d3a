"""bigvit: DeepSpeed-scaled training of large Vision Transformers by named recipes.

    recipe = bigvit.load_recipe("deit3_s16_in1k_224_800e")
    model = bigvit.build_model(recipe)
    logits = model(images).logits

Python code is meant to import this, and the dataclasses of `bigvit.recipe`; docs/python.md shows it
at work. Importing it takes no time: torch is imported when it is used.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bigvit.data.epoch import Loader
    from bigvit.models import Backbone
    from bigvit.objectives.localization_loss import LocalizationLoss
    from bigvit.optim import LAMB
    from bigvit.recipe import ImageSize, Recipe

__version__ = "0.1.0"
__all__ = [
    "LAMB",
    "Loader",
    "LocalizationLoss",
    "TrainedModel",
    "build_loader",
    "build_model",
    "load_recipe",
    "load_trained",
]
LATE = {
    "LAMB": "bigvit.optim",
    "Loader": "bigvit.data.epoch",
    "LocalizationLoss": "bigvit.objectives.localization_loss",
}
"""Classes that need torch, and where they are."""


def __getattr__(name: str) -> Any:
    if name not in LATE:
        raise AttributeError(f"module 'bigvit' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(LATE[name]), name)


def load_recipe(name: str) -> "Recipe":
    """A recipe by its name (`bigvit list` has them), or of a file of one's own: FILE.py[:NAME].

    It is a frozen dataclass: `dataclasses.replace` changes a value.

    Raises:
        ValueError: there is none, and what is near; or its values cannot train.
    """
    from bigvit.recipe.check import check_recipe
    from bigvit.recipe.find import find_recipe

    recipe = find_recipe(name)[1]
    check_recipe(recipe)
    return recipe


def build_model(recipe: "Recipe", weights: str | Path | None = None) -> "Backbone":
    """The recipe's model, on the CPU, in training mode.

    `model(images)` takes normalised images (B, C, H, W), and returns an `Output` with `logits`
    (B, K), the last `tokens` (B, N, D) and their `grid`. Nothing is dropped, unless it is given
    `model.draws(seed, number, (0, B))` too.

    Args:
        weights: what `--init` takes: a run, checkpoint, export, .safetensors or .pth file, or
            timm:NAME. Positions are resampled, and a head of other classes is made anew. Without
            any, the weights are those that a run of the recipe begins with.

    Raises:
        ValueError: the weights cannot be read, or are not of this model.
    """
    from bigvit import models

    size = recipe.data.image_size
    model = models.build(recipe.model, size)
    model.init_weights(recipe.seed)
    if weights is not None:
        from bigvit.checkpoint.weights import fit, read_init

        given, grid = read_init(str(weights)), recipe.model.grid(size)
        fit(given, model, grid, recipe.resampling, recipe.model.kind)
    return model


def build_loader(
    recipe: "Recipe",
    data_root: str | Path | None = None,
    split: Literal["train", "test"] = "train",
    *,
    batch_size: int | None = None,
    epoch: int = 0,
    workers: int | None = None,
    device: str = "cpu",
    classes_map: str | Path | None = None,
) -> "Loader":
    """The recipe's images as a model takes them, batch by batch: `inputs.images` (B, C, H, W),
    float32, normalised, and `inputs.targets` with `classes` (B,) and `dense` (B, K).

    Training images are varied and mixed as the recipe says, in its order; test images are resized
    and cropped, and those that cannot be read are left out.

    Args:
        data_root: where the data set is; see README's "Your data".
        batch_size: another than the recipe's; what does not fill the last training batch is left.
        epoch: of the training, counted from 0.
        workers: processes that decode; by default as the cores allow.
        device: where the inputs are made.
        classes_map: the file that says the classes of a recipe whose data.level is "map".

    Raises:
        ValueError: the data are not there or not the recipe's, or a value is not allowed.
    """
    from bigvit.data.epoch import Loader
    from bigvit.data.sources import open_splits
    from bigvit.data.workers import workers_for
    from bigvit.engines.build import outline
    from bigvit.recipe.check import check_recipe

    recipe = replace(recipe, batch_size=recipe.batch_size if batch_size is None else batch_size)
    check_recipe(recipe)
    if not 0 <= epoch < recipe.epochs:
        last = recipe.epochs - 1
        raise ValueError(f"epoch: {epoch} is not allowed; the recipe has 0 to {last}")
    root, coarser = (None if each is None else Path(each) for each in (data_root, classes_map))
    train, test = open_splits(recipe.data, root, coarser)
    if split == "test" and test is None:
        raise ValueError("split: the recipe has no test images (data.test_images 0); use train")
    source, draws = (train, outline(recipe).draws) if split == "train" else (test, None)
    assert source is not None
    processes = workers_for(workers)
    return Loader(source, recipe, processes, device, draws, epoch)


class TrainedModel(NamedTuple):
    """What a run has trained."""

    model: "Backbone"  # in evaluation mode, in float32
    recipe: "Recipe"
    classes: list[str] | None  # their names, where the run folder says them

    def features(self, images: Any, blocks: "Sequence[int] | None" = None) -> list[Any]:
        """What blocks make of images as maps, for segmentation, detection and the like: of each a
        map (B, D, h, w), not normalised.

        Args:
            images: (B, C, H, W), normalised as the recipe's, of the model's size, or of that
                turned where the model takes it.
            blocks: counted from 0; left out: the last of each stage; of a model without stages
                four, evenly spread.

        Raises:
            ValueError: images of another size, or there is no such block.
        """
        from bigvit.recipe import sides

        size, given = sides(self.recipe.data.image_size), tuple(images.shape[-2:])
        if given != size and not (self.recipe.model.turns and given == size[::-1]):
            raise ValueError(
                f"images of {given[0]} x {given[1]} pixels: the model is for {size[0]} x "
                f"{size[1]}; load it for them: load_trained(..., image_size={given})"
            )
        return self.model.maps(images, blocks)


def load_trained(
    path: str | Path, *, ema: bool = False, image_size: "ImageSize | None" = None
) -> TrainedModel:
    """The model of a checkpoint, or of a run folder's newest.

    Args:
        ema: the average of the weights instead of them.
        image_size: another resolution than the recipe's; positions are resampled.

    Raises:
        ValueError: there is none, or it holds no average, or the size does not fit the model.
    """
    from bigvit.checkpoint.run import class_names, run_of
    from bigvit.checkpoint.trained import trained

    found = trained(Path(path), image_size, ema)
    recipe = found.task.recipe
    classes = class_names(run_of(found.checkpoint), recipe.model.num_classes)
    return TrainedModel(found.task.model.eval(), recipe, classes)
