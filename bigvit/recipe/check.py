# pyright: reportUnknownVariableType=false
"""Refuse values that cannot train, before anything expensive. No torch here.

Each number by itself is in `bounds.py`; here is what values mean for each other.
"""

import difflib
import math
import re
from pathlib import Path

from bigvit.recipe.bounds import (
    MOST_PARAMETERS,
    allow,
    check_numbers,
    leaves,
)
from bigvit.recipe.check_dense import check_dense
from bigvit.recipe.data import (
    Digits,
    Images,
    Mix,
    MixToken,
    RandomResizedCrop,
    SimpleRandomCrop,
    Views,
)
from bigvit.recipe.depth import sides
from bigvit.recipe.detection import Detection
from bigvit.recipe.length import check_length
from bigvit.recipe.models.timm import Timm
from bigvit.recipe.models.uniform import TokenLabeled
from bigvit.recipe.objective import (
    BinaryCrossEntropy,
    CrossEntropy,
    Distillation,
    DRLoc,
    ReLabel,
    TokenLabeling,
)
from bigvit.recipe.optim import SGD
from bigvit.recipe.recipe import Recipe
from bigvit.recipe.run import Run
from bigvit.recipe.scene import MOST_CLASSES
from bigvit.recipe.segmentation import Segmentation
from bigvit.recipe.views import check_views
from bigvit.recipe.words import check_text

SCALED = 160
"""Pixels of an input's side up to which scaled decoding is faster."""
POSITIONS = "pos_embed"  # weights of which there are as many as an image has patches
INDEX = ("images", "classes", "digest", "contents")
"""What a data set's index is described by, in a checkpoint: index.train.digest."""
GIVEN = ("teacher.digest", "label_maps.digest")
"""What is told of that which a run is given beside its recipe."""


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
    _check_teacher(recipe)
    _check_objectives(recipe)
    _check_distillation(recipe)
    _check_patches(recipe)
    _check_maps(recipe)
    check_dense(recipe)
    check_views(recipe)
    check_length(recipe)
    if isinstance(recipe.optim, SGD) and recipe.optim.nesterov:
        momentum = recipe.optim.momentum
        allow("optim.momentum", momentum, momentum > 0, "above 0 with optim.nesterov")
    given, own = recipe.gradient_precision, recipe.precision
    allowed = "fp32" if own == "fp32" else f"fp32, or {own}, the model's (precision)"
    allow("gradient_precision", given, given in ("fp32", own), allowed)


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
    if recipe.trainable == "attention" and not recipe.model.has_attention:
        raise ValueError(
            f"trainable: attention is not allowed; {type(recipe.model).__name__} has none, and its "
            "head alone would be trained: --trainable all, or head"
        )
    if recipe.trainable == "later_stages" and not recipe.model.beginning:
        kind = type(recipe.model).__name__
        raise ValueError(
            f"trainable: later_stages is not allowed; {kind} has no stages, as "
            "Swin, CvT and ResNet have: --trainable all"
        )
    if recipe.trainable == "head" and isinstance(recipe.model, Timm):
        raise ValueError(
            "trainable: head is not allowed; which weights a model's head has timm alone knows: "
            "--trainable all"
        )
    if recipe.trainable == "head" and not recipe.classifies:
        raise ValueError(
            "trainable: head is not allowed; no objective of this recipe trains a classifier: "
            "--trainable all"
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
    for path in (*(path for path, _ in leaves(recipe)), *index, *GIVEN):
        names = path.split(".")
        known |= {".".join(names[:i]) for i in range(1, len(names) + 1)}
    for name in run.allow_change:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = f"the nearest are {', '.join(near)}" if near else "`bigvit show` lists them"
            raise ValueError(f"--allow-change {name}: there is no such field; {hint}")


def _check_model(recipe: Recipe) -> None:
    model, size = recipe.model, recipe.data.image_size
    model.check(size, recipe.starts_from)
    if (parameters := model.parameters(size)) > MOST_PARAMETERS:
        raise ValueError(
            f"model: {parameters:,} parameters are not allowed; choose smaller values of "
            f"model.{model.width}, model.depth or data.image_size, as no machine holds more than "
            f"{MOST_PARAMETERS:,}"
        )
    drop = model.drop_path
    if drop.grouped and 0 in drop.kept(model.branches):
        raise ValueError(
            f"model.drop_path.rate: {drop.rate} keeps none of a group of {drop.group}; "
            f"choose a lower rate or a group of at least {math.ceil(1 / (1 - drop.rate))}"
        )


def _check_data(recipe: Recipe) -> None:
    data, model = recipe.data, recipe.model
    channels, heads = data.channels, model.num_classes
    allow(
        "model.in_chans",
        model.in_chans,
        model.in_chans == channels,
        f"{channels}, what the images have",
    )
    enough = f"{data.classes} or more, what the data have"
    allow("model.num_classes", heads, recipe.dense is not None or heads >= data.classes, enough)
    for name in ("mean", "std"):
        value = getattr(data, name)
        allow(f"data.{name}", value, len(value) == channels, f"{channels} numbers")
    match data:
        case Digits():
            size = data.image_size
            allow("data.image_size", size, size == 8, "8, what the scans have")
            if data.augment:
                pixels = data.augment.pixels
                allow("data.augment.pixels", pixels, pixels < size, "0 to 7")
            elif data.views:
                raise ValueError(
                    f"data.views: {data.views} is not allowed without data.augment, as all views "
                    "would be the image itself; choose 0, or shift them"
                )
        case Segmentation():
            most = MOST_CLASSES
            allow("data.classes", data.classes, data.classes <= most, f"1 to {most}")
            across = min(sides(data.image_size))
            allowed = f"at most {across}, the shorter side of a window (data.image_size)"
            allow("data.stride", data.stride, data.stride <= across, allowed)
            low, high = data.factor
            allow("data.factor", data.factor, low <= high, "two numbers that do not fall")
        case Detection():
            pass
        case Images():
            _check_crop(data, "data")
            for i, view in enumerate(data.views):
                _check_crop(view, f"data.views.{i}")
                _check_size(recipe, view, f"data.views.{i}.image_size")
            largest = max(max(sides(each.image_size)) for each in (data, *data.views))
            exact = data.decode == "exact" or largest <= SCALED
            allowed = (
                f"exact where a side of the input is above {SCALED} pixels: it is no faster there"
            )
            allow("data.decode", data.decode, exact, allowed)


def _check_size(recipe: Recipe, view: Views, path: str) -> None:
    """Refuse views that the model cannot take: it has the same weights for them, but for positions,
    which are brought to their grid."""
    model, size = recipe.model, view.image_size
    try:
        model.check(size, recipe.starts_from)
    except ValueError as error:
        raise ValueError(str(error).replace("data.image_size", path)) from None
    own, other = (
        [(op.module, op.parameters, op.times) for op in model.ops(each) if op.module != POSITIONS]
        for each in (recipe.data.image_size, size)
    )
    same = size == recipe.data.image_size or own == other
    allowed = f"{recipe.data.image_size}, as {type(model).__name__} is built for one size"
    allow(path, size, same, f"{allowed} (data.image_size)")


def _check_crop(data: Images | Views, path: str) -> None:
    match data.crop:
        case RandomResizedCrop():
            for name in ("scale", "ratio"):
                low, high = getattr(data.crop, name)
                allow(f"{path}.crop.{name}", (low, high), low <= high, "the lower one first")
        case SimpleRandomCrop():
            padding, most = data.crop.padding, min(sides(data.image_size)) - 1
            allow(f"{path}.crop.padding", padding, padding <= most, f"0 to {most}")


def _check_teacher(recipe: Recipe) -> None:
    if (teacher := recipe.teacher) is None:
        return
    model, channels, classes = teacher.model, recipe.data.channels, recipe.model.num_classes
    seen, same = model.in_chans, f"{channels}, as many as the student's images have"
    allow("teacher.model.in_chans", seen, seen == channels, same)
    known, same = model.num_classes, f"{classes}, as many as the student has (model.num_classes)"
    allow("teacher.model.num_classes", known, known == classes, same)
    for name in ("mean", "std"):
        value = getattr(teacher, name)
        allow(f"teacher.{name}", value, len(value) == channels, f"{channels} numbers")
    try:
        model.check(teacher.image_size, None)
    except ValueError as error:
        of_teacher = str(error).replace("data.image_size", "image_size")
        named = re.sub(r"(?<![\w.])(image_size|model\.)", r"teacher.\1", of_teacher)
        raise ValueError(named) from None


def _check_objectives(recipe: Recipe) -> None:
    if not recipe.objectives:
        raise ValueError("objectives: none given; give at least one")
    for i, objective in enumerate(recipe.objectives):
        path = f"objectives.{i}"
        weighted = isinstance(objective, BinaryCrossEntropy | CrossEntropy)
        if weighted and isinstance(weights := objective.class_weights, tuple):
            count = recipe.data.classes
            allowed = f"{count} numbers, one for each of the data's classes, and not all 0"
            fine = len(weights) == count and any(weights)
            allow(f"{path}.class_weights", weights, fine, allowed)
        match objective:
            case BinaryCrossEntropy(smoothing=smoothing) if smoothing:
                raise ValueError(
                    f"{path}.smoothing: {smoothing} with binary cross-entropy makes "
                    "every class positive (a target above the threshold is 1); choose 0"
                )
            case DRLoc():
                recipe.model.maps(recipe.data.image_size)
                _check_drloc(path, objective, recipe.epochs)
            case _:
                pass


def _check_distillation(recipe: Recipe) -> None:
    """A teacher and those who learn from it come together, and so do a token and its objective."""
    distilled = {
        f"objectives.{i}": objective
        for i, objective in enumerate(recipe.objectives)
        if isinstance(objective, Distillation)
    }
    model, kind = recipe.model, type(recipe.model).__name__
    for path, objective in distilled.items():
        if recipe.teacher is None:
            raise ValueError(
                f"{path}: {type(objective).__name__} has no teacher to learn from; describe one "
                "(teacher), or leave the objective out"
            )
        if objective.head == "distillation" and not model.fusion:
            raise ValueError(
                f"{path}.head: distillation is not allowed; this {kind} has no distillation token: "
                f"--{path}.head class, or a model with one (DeiT and CaiT: model.distillation)"
            )
    heads = {each.head for each in distilled.values() if each.weight > 0}
    if recipe.teacher is not None and not heads:
        raise ValueError(
            "teacher: no objective learns from it; add HardDistillation or SoftDistillation, or "
            "leave the teacher out"
        )
    if model.fusion and recipe.dense is None and "distillation" not in heads:
        raise ValueError(
            "model.distillation: no objective trains the distillation token's head; add one whose "
            "head is distillation, or choose a model without the token"
        )


def _check_patches(recipe: Recipe) -> None:
    """A head on patches and those who train it come together; not all models mix patches."""
    model, kind = recipe.model, type(recipe.model).__name__
    dense = isinstance(model, TokenLabeled) and model.dense_head
    labelled = [i for i, o in enumerate(recipe.objectives) if isinstance(o, TokenLabeling)]
    if labelled and not dense:
        raise ValueError(
            f"objectives.{labelled[0]}: TokenLabeling is not allowed; this {kind} has no head on "
            "patches: --model.dense-head (of ViT, CaiT and LVViT), or leave the objective out"
        )
    if dense and recipe.dense is None and not labelled:
        raise ValueError(
            "model.dense_head: no objective trains the head on patches; add TokenLabeling, or "
            "--no-model.dense-head"
        )
    mix = recipe.data.mix if isinstance(recipe.data, Images) else None
    if not isinstance(mix, MixToken):
        return
    if not isinstance(model, TokenLabeled):
        can = "ViT, CaiT and LVViT can"
        raise ValueError(f"data.mix: MixToken is not allowed; {kind} cannot, and {can}")
    allowed = f"{model.patch_size}, the side of the model's patches"
    allow("data.mix.cell", mix.cell, mix.cell == model.patch_size, allowed)
    if recipe.teacher is not None:
        raise ValueError(
            "teacher: not allowed with MixToken, whose images are mixed within the student alone; "
            "choose another data.mix"
        )


def _check_maps(recipe: Recipe) -> None:
    """Maps of labels are of photographs, and a patch that shows two images has no label there."""
    if not recipe.maps:
        return
    i, kind = next(
        (i, type(each).__name__)
        for i, each in enumerate(recipe.objectives)
        if isinstance(each, ReLabel | TokenLabeling)
    )
    if not isinstance(recipe.data, Images):
        raise ValueError(
            f"objectives.{i}: {kind} is not allowed; the digits have no label maps: leave it out"
        )
    asked = {each.labels for each in recipe.objectives if isinstance(each, TokenLabeling)}
    if len(asked) > 1:
        raise ValueError(
            "objectives: patches have one label each, from their map or of their image; give all "
            "TokenLabeling the same labels"
        )
    if "map" in asked and isinstance(recipe.data.mix, Mix):
        raise ValueError(
            "data.mix: Mix is not allowed where patches learn from label maps, as a patch would "
            "show two images; choose None, or MixToken"
        )


def _check_drloc(path: str, drloc: DRLoc, epochs: int) -> None:
    if drloc.unit == "cells" and drloc.offsets in ("classes", "gaussian"):
        raise ValueError(f"{path}.unit: {drloc.offsets} offsets have no unit; choose grid")
    if ramp := drloc.ramp:
        warmup, allowed = ramp.warmup_epochs, f"0 to schedule.epochs ({epochs})"
        allow(f"{path}.ramp.warmup_epochs", warmup, warmup <= epochs, allowed)
