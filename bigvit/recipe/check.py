# pyright: reportUnknownVariableType=false
"""Refuse values that cannot train, before anything expensive. No torch here.

Each number by itself is in `bounds.py`; here is what values mean for each other.
"""

import difflib
import math
from pathlib import Path

from bigvit.recipe.backbones import CvT, ResNet, Swin, T2TViT
from bigvit.recipe.bounds import (
    MOST_PARAMETERS,
    MOST_STAGES,
    MOST_UPDATES,
    check_numbers,
    leaves,
    shown,
)
from bigvit.recipe.data import Digits, Images, RandomResizedCrop, SimpleRandomCrop
from bigvit.recipe.depth import sides
from bigvit.recipe.model import CaiT, ClassToken, ParallelViT, ViT
from bigvit.recipe.objective import BinaryCrossEntropy, DRLoc
from bigvit.recipe.recipe import Recipe
from bigvit.recipe.residual import FixedLayerScale
from bigvit.recipe.run import Run
from bigvit.recipe.words import check_text

INDEX = ("images", "classes", "digest", "contents")
"""What a data set's index is described by, in a checkpoint: index.train.digest."""


def check_recipe(recipe: Recipe) -> None:
    """Check every value of a recipe on its own and against the others.

    Raises:
        ValueError: names the field, the value given and what is allowed.
    """
    check_numbers(recipe)
    for path, value in leaves(recipe):
        if isinstance(value, str) and path != "source":
            check_text(path, value)
    _check_model(recipe)
    _check_data(recipe)
    _check_objectives(recipe)
    _check_schedule(recipe)


def check_training(recipe: Recipe) -> None:
    """Check what a model to be trained needs beside; one that was trained before may lack it.

    Raises:
        ValueError: names the field, the value given and what is allowed.
    """
    heads, classes = recipe.model.num_classes, recipe.data.classes
    if heads != classes:
        raise ValueError(
            f"model.num_classes: {heads} is not allowed; it must be {classes}, what the data have "
            f"(data.classes): --model.num-classes {classes}"
        )
    if recipe.trainable == "attention" and isinstance(recipe.model, ResNet):
        raise ValueError(
            f"trainable: attention is not allowed; {type(recipe.model).__name__} has none, and its "
            "head alone would be trained: --trainable all"
        )


def check_run(run: Run) -> None:
    """Check the values of a run on their own.

    Raises:
        ValueError: names the option, the value given and what is allowed.
    """
    for path, value in leaves(run):
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str | Path):
                check_text(_option(path), str(text))
    check_numbers(run, _option)


def _option(field: str) -> str:
    """A field of a run as the command line calls it."""
    return f"--{field.replace('_', '-')}"


def check_changes(run: Run, recipe: Recipe) -> None:
    """Check that the fields that may differ from an earlier run are fields.

    Raises:
        ValueError: one is not; the message gives the nearest.
    """
    index = [f"index.{split}.{key}" for split in ("train", "test") for key in INDEX]
    known = {""}
    for path in (*(path for path, _ in leaves(recipe)), *index):
        names = path.split(".")
        known |= {".".join(names[:i]) for i in range(1, len(names) + 1)}
    for name in run.allow_change:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = f"the nearest are {', '.join(near)}" if near else "`bigvit show` lists them"
            raise ValueError(f"--allow-change {name}: there is no such field; {hint}")


def _check_model(recipe: Recipe) -> None:
    model, size = recipe.model, recipe.data.image_size
    match model:
        case Swin() | CvT() | ResNet():
            _check_stages(model)
        case _:
            _check_uniform(model)
    if isinstance(model, CaiT):
        _check_cait(recipe, model)
    if isinstance(model, ViT | ParallelViT | CaiT | Swin):
        patch = model.patch_size
        fits = all(side % patch == 0 for side in sides(size))
        _allow("data.image_size", size, fits, f"a multiple of model.patch_size ({patch})")
    if (parameters := model.parameters(size)) > MOST_PARAMETERS:
        width = "model.embed_dims" if isinstance(model, CvT) else "model.embed_dim"
        raise ValueError(
            f"model: {parameters:,} parameters are not allowed; choose smaller values of {width}, "
            f"model.depth or data.image_size, as no machine holds more than {MOST_PARAMETERS:,}"
        )
    drop = model.drop_path
    if drop.grouped and min(drop.kept(model.branches)) == 0:
        raise ValueError(
            f"model.drop_path.rate: {drop.rate} keeps none of a group of {drop.group}; "
            f"choose a lower rate or a group of at least {math.ceil(1 / (1 - drop.rate))}"
        )


def _check_cait(recipe: Recipe, model: CaiT) -> None:
    if isinstance(model.pooling, ClassToken):
        layer, last = model.pooling.layer, model.depth - 1
        _allow("model.pooling.layer", layer, layer <= last, f"0 to {last}")
    if isinstance(model.residual, FixedLayerScale):
        start = recipe.starts_from
        allowed = "the recipe whose run the fixed factors are taken from"
        _allow("starts_from", start, start is not None, allowed)


def _check_uniform(model: ViT | ParallelViT | CaiT | T2TViT) -> None:
    _allow("model.mlp_ratio", model.mlp_ratio, model.hidden_dim >= 1, "1/embed_dim or more")
    _allow(
        "model.embed_dim",
        model.embed_dim,
        model.embed_dim % model.num_heads == 0,
        f"a multiple of model.num_heads ({model.num_heads})",
    )


def _check_stages(model: Swin | CvT | ResNet) -> None:
    depths = model.depths
    _allow("model.depths", depths, 1 <= len(depths) <= MOST_STAGES, f"1 to {MOST_STAGES} numbers")
    if isinstance(model, ResNet):
        _allow("model.depths", depths, model.depth >= 2, "two blocks or more in all")
        return
    heads, stages = model.num_heads, f"one for each of {len(depths)} stages"
    _allow("model.num_heads", heads, len(heads) == len(depths), stages)
    if isinstance(model, Swin):
        name, given = "model.embed_dim", model.embed_dim
        widths = tuple(model.embed_dim * 2**i for i in range(len(depths)))
    else:
        name, given = "model.embed_dims", model.embed_dims
        widths = model.embed_dims
        _allow(name, given, len(widths) == len(depths), stages)
    fits = all(d % n == 0 for d, n in zip(widths, heads, strict=True))
    _allow(name, given, fits, f"in each stage a multiple of model.num_heads {heads}")
    narrow = int(min(widths) * model.mlp_ratio) >= 1
    _allow("model.mlp_ratio", model.mlp_ratio, narrow, "1/width or more")


def _check_data(recipe: Recipe) -> None:
    data, model = recipe.data, recipe.model
    channels, heads = data.channels, model.num_classes
    _allow(
        "model.in_chans",
        model.in_chans,
        model.in_chans == channels,
        f"{channels}, what the images have",
    )
    enough = f"{data.classes} or more, what the data have"
    _allow("model.num_classes", heads, heads >= data.classes, enough)
    for name in ("mean", "std"):
        value = getattr(data, name)
        _allow(f"data.{name}", value, len(value) == channels, f"{channels} numbers")
    match data:
        case Digits():
            size = data.image_size
            _allow("data.image_size", size, size == 8, "8, what the scans have")
            if data.augment:
                pixels = data.augment.pixels
                _allow("data.augment.pixels", pixels, pixels < size, "0 to 7")
        case Images():
            _check_crop(data)


def _check_crop(data: Images) -> None:
    match data.crop:
        case RandomResizedCrop():
            for name in ("scale", "ratio"):
                low, high = getattr(data.crop, name)
                _allow(f"data.crop.{name}", (low, high), low <= high, "the lower one first")
        case SimpleRandomCrop():
            padding, most = data.crop.padding, min(sides(data.image_size)) - 1
            _allow("data.crop.padding", padding, padding <= most, f"0 to {most}")


def _check_objectives(recipe: Recipe) -> None:
    if not recipe.objectives:
        raise ValueError("objectives: none given; give at least one")
    for i, objective in enumerate(recipe.objectives):
        path = f"objectives.{i}"
        match objective:
            case BinaryCrossEntropy(smoothing=smoothing) if smoothing:
                raise ValueError(
                    f"{path}.smoothing: {smoothing} with binary cross-entropy makes "
                    "every class positive (a target above the threshold is 1); choose 0"
                )
            case DRLoc():
                _check_drloc(path, objective, recipe.schedule.epochs)
            case _:
                pass


def _check_drloc(path: str, drloc: DRLoc, epochs: int) -> None:
    if drloc.unit == "cells" and drloc.offsets in ("classes", "gaussian"):
        raise ValueError(f"{path}.unit: {drloc.offsets} offsets have no unit; choose grid")
    if ramp := drloc.ramp:
        warmup, allowed = ramp.warmup_epochs, f"0 to schedule.epochs ({epochs})"
        _allow(f"{path}.ramp.warmup_epochs", warmup, warmup <= epochs, allowed)


def _check_schedule(recipe: Recipe) -> None:
    batch, schedule, data = recipe.batch_size, recipe.schedule, recipe.data
    epochs, warmup = schedule.epochs, schedule.warmup_epochs
    allowed = f"0 to schedule.epochs ({epochs})"
    _allow("schedule.warmup_epochs", warmup, warmup <= epochs, allowed)
    if recipe.updates_per_epoch == 0:
        raise ValueError(
            f"batch_size: {batch} is larger than an epoch ({data.train_images} images); choose a "
            "smaller batch"
        )
    if recipe.updates > MOST_UPDATES:
        raise ValueError(
            f"schedule.epochs: {epochs:,} epochs of {recipe.updates_per_epoch:,} updates are "
            f"{recipe.updates:,}; choose fewer, as checkpoints count to {MOST_UPDATES:,}"
        )
    if data.repeats > 1 and (group := data.mixing_group) and batch // data.repeats < group:
        raise ValueError(
            f"batch_size: {batch} with data.repeats {data.repeats} would mix copies of one image "
            f"with each other in groups of {group}; choose at least {group * data.repeats}"
        )


def _allow(path: str, value: object, fine: bool, allowed: str) -> None:
    if not fine:
        raise ValueError(f"{path}: {shown(value)} is not allowed; it must be {allowed}")
