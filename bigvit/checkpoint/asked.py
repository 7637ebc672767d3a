"""A trained model that is asked about images: a run's, or one of timm's.

Shapes: B images, K classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from bigvit.checkpoint.of_timm import of_timm
from bigvit.checkpoint.run import class_names, classes_map_of, run_of
from bigvit.checkpoint.trained import trained
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Data, Images, Recipe
from bigvit.task import DTYPES, PREDICTION, Task, before_timms_head

Predict = Callable[[Tensor], Mapping[str, Tensor]]
"""Normalised images (B, C, H, W) -> logits (B, K) by name, the prediction's first."""


class Model(NamedTuple):
    """A model on a device."""

    name: str
    data: Data  # what it is fed
    predict: Predict
    classes: list[str] | None  # the names of its outputs, where they are known
    outputs: int
    embed: Callable[[Tensor], Tensor]  # normalised images -> features before the head (B, D)
    module: nn.Module  # with all weights
    classes_map: Path | None = None  # what says the level of its classes, if a file does
    classifies: bool = True  # whether its classifier was trained


def refuse_untrained(name: object, classifies: bool) -> None:
    """Raise ValueError where a classifier is asked that no objective trained."""
    if not classifies:
        raise ValueError(
            f"{name}: its classifier was not trained, as none of its objectives classifies; "
            "`bigvit neighbours` and `bigvit probe` say what its features are worth"
        )


def from_run(given: str, ema: bool, ranks: Ranks, trunk: bool = False) -> Model:
    """A run's newest checkpoint, or one.

    Args:
        trunk: whether features are the trunk's also where an objective has projected them.

    Raises:
        ValueError: it says no class of an image.
    """
    checkpoint, _, task = trained(Path(given), None, ema)
    recipe: Recipe = task.recipe
    if recipe.dense is not None:
        kind = type(recipe.dense).__name__
        raise ValueError(
            f"{given}: its {kind} says more of an image than one class; `bigvit evaluate RUN "
            "--pictures FILE` measures and draws what it says"
        )
    task.to(ranks.device, DTYPES[recipe.precision])
    task.eval()
    classes = class_names(run_of(checkpoint), recipe.data.classes)
    name = run_of(checkpoint).resolve().name
    projector = None if trunk else task.projector()
    embed, module = partial(_embed, task, projector), task.model
    if projector is not None:
        module = nn.ModuleDict({"model": task.model, "projector": projector})
    more = recipe.model.num_classes, embed, module, classes_map_of(checkpoint)
    more = (*more, recipe.classifies)
    return Model(name, recipe.data, task.predictions, classes, *more)


def from_timm(given: str, data: Data, ranks: Ranks) -> Model:
    """A model of timm's with its published weights, or local-dir:FOLDER, as an export is; its
    classes are those that its configuration names.

    Args:
        data: of the images that it is asked about.

    Raises:
        ValueError: it cannot be had, or does not take such images.
    """
    if not isinstance(data, Images):
        raise ValueError(f"{given}: the test set has no colour images, which timm's models take")
    taken = of_timm(given)
    channels, *size = taken.input_size
    if channels != data.channels:
        raise ValueError(f"{given}: it takes {channels} channels, and the images have 3")
    fed = replace(
        data,
        image_size=size[0] if size[0] == size[1] else tuple(size),
        mean=taken.mean,
        std=taken.std,
        test_crop_ratio=taken.crop_ratio,
    )
    model = taken.model.to(ranks.device)
    names = getattr(model, "pretrained_cfg", {}).get("label_names")
    count = model.num_classes
    classes = list(map(str, names)) if isinstance(names, list) and len(names) == count else None
    predict, embed = partial(_predict, model), partial(before_timms_head, model)
    return Model(given.rpartition(":")[2], fed, predict, classes, count, embed, model)


def _embed(task: Task, projector: nn.Module | None, images: Tensor) -> Tensor:
    found = task.model.embed(images.to(next(task.model.parameters()).dtype))
    return (found if projector is None else projector(found)).float()


def _predict(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    return {PREDICTION: model(images)}
