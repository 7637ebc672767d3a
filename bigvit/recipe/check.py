# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
"""Refuse values that cannot train, before anything expensive. No torch here."""

import difflib
import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from bigvit.recipe.backbones import CvT, ResNet, Swin, T2TViT
from bigvit.recipe.data import (
    Digits,
    Images,
    RandAugment,
    RandomResizedCrop,
    SimpleRandomCrop,
    ThreeAugment,
)
from bigvit.recipe.depth import sides
from bigvit.recipe.model import CaiT, ClassAttention, ClassToken, ParallelViT, ViT
from bigvit.recipe.objective import BinaryCrossEntropy, CrossEntropy, DRLoc
from bigvit.recipe.recipe import Recipe
from bigvit.recipe.residual import FixedLayerScale, UniformLayerScale
from bigvit.recipe.run import Run

INDEX = ("images", "classes", "digest", "contents")
DAY = 86400  # seconds
"""What a data set's index is described by, in a checkpoint: index.train.digest."""


def leaves(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value inside a dataclass, with its dotted path."""
    if is_dataclass(value):
        for field in fields(value):
            below = f"{path}.{field.name}" if path else field.name
            yield from leaves(getattr(value, field.name), below)
    elif isinstance(value, tuple) and any(is_dataclass(item) for item in value):
        for i, item in enumerate(value):
            yield from leaves(item, f"{path}.{i}")
    else:
        yield path, value


def check_recipe(recipe: Recipe) -> None:
    """Check every value of a recipe on its own and against the others.

    Raises:
        ValueError: names the field, the value given and what is allowed.
    """
    for path, value in leaves(recipe):
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueError(f"{path}: {value} is not a finite number; give a finite one")
    _check_model(recipe)
    _check_data(recipe)
    _check_objectives(recipe)
    _check_optim(recipe)
    if recipe.updates_per_epoch == 0:
        raise ValueError(
            f"batch_size: {recipe.batch_size} is larger than an epoch "
            f"({recipe.data.train_images} images); choose a smaller batch"
        )
    if recipe.data.repeats > 1 and (group := recipe.data.mixing_group):
        if recipe.batch_size // recipe.data.repeats < group:
            raise ValueError(
                f"batch_size: {recipe.batch_size} with data.repeats {recipe.data.repeats} would "
                f"mix copies of one image with each other in groups of {group}; choose at least "
                f"{group * recipe.data.repeats}"
            )


def check_run(run: Run) -> None:
    """Check the values of a run on their own.

    Raises:
        ValueError: names the option, the value given and what is allowed.
    """
    for name in (
        "micro_batch",
        "log_every",
        "evaluate_every",
        "checkpoint_every",
        "keep",
        "keep_every",
        "stop_after",
    ):
        value = getattr(run, name)
        _allow(f"--{name.replace('_', '-')}", value, value is None or value >= 1, "at least 1")
    workers = run.workers
    _allow("--workers", workers, workers is None or workers >= 0, "0 or more")
    minutes = run.max_minutes
    _allow("--max-minutes", minutes, minutes is None or 0 < minutes < math.inf, "above 0")
    _allow("--timeout", run.timeout, 1 <= run.timeout <= DAY, "1 second to a day (86400)")
    jump = run.loss_jump
    _allow("--loss-jump", jump, jump is None or jump > 1, "above 1")
    for name in ("bad_images", "checkpoint_activations"):
        share = getattr(run, name)
        _allow(f"--{name.replace('_', '-')}", share, 0 <= share <= 1, "a share, 0 to 1")


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
    for name in ("in_chans", "num_classes"):
        _allow(f"model.{name}", getattr(model, name), getattr(model, name) >= 1, "at least 1")
    _allow("data.image_size", size, min(sides(size)) >= 1, "at least 1")
    match model:
        case Swin() | CvT() | ResNet():
            _check_stages(model)
        case _:
            _check_uniform(model)
    if isinstance(model, CaiT):
        _check_cait(recipe, model)
    if isinstance(model, ViT | ParallelViT | CaiT | Swin):
        patch = model.patch_size
        _allow("model.patch_size", patch, patch >= 1, "at least 1")
        fits = all(side % patch == 0 for side in sides(size))
        _allow("data.image_size", size, fits, f"a multiple of model.patch_size ({patch})")
    drop = model.drop_path
    _allow("model.drop_path.rate", drop.rate, 0 <= drop.rate < 1, "in [0, 1)")
    _allow("model.drop_path.group", drop.group, drop.group >= 1, "at least 1")
    if drop.grouped and min(drop.kept(model.branches)) == 0:
        raise ValueError(
            f"model.drop_path.rate: {drop.rate} keeps none of a group of {drop.group}; "
            f"choose a lower rate or a group of at least {math.ceil(1 / (1 - drop.rate))}"
        )


def _check_cait(recipe: Recipe, model: CaiT) -> None:
    match model.pooling:
        case ClassAttention(depth=depth):
            _allow("model.pooling.depth", depth, depth >= 1, "at least 1")
        case ClassToken(layer=layer):
            last = model.depth - 1
            _allow("model.pooling.layer", layer, 0 <= layer <= last, f"0 to {last}")
        case _:
            pass
    match model.residual:
        case UniformLayerScale(mean=mean):
            _allow("model.residual.mean", mean, mean > 0, "above 0")
        case FixedLayerScale():
            start = recipe.starts_from
            allowed = "the recipe whose run the fixed factors are taken from"
            _allow("starts_from", start, start is not None, allowed)
        case _:
            pass


def _check_uniform(model: ViT | ParallelViT | CaiT | T2TViT) -> None:
    names = ["embed_dim", "depth", "num_heads"]
    names += ["branches_per_block"] * isinstance(model, ParallelViT)
    names += ["token_dim"] * isinstance(model, T2TViT)
    for name in names:
        _allow(f"model.{name}", getattr(model, name), getattr(model, name) >= 1, "at least 1")
    _allow("model.mlp_ratio", model.mlp_ratio, model.hidden_dim >= 1, "1/embed_dim or more")
    _allow(
        "model.embed_dim",
        model.embed_dim,
        model.embed_dim % model.num_heads == 0,
        f"a multiple of model.num_heads ({model.num_heads})",
    )


def _check_stages(model: Swin | CvT | ResNet) -> None:
    depths = model.depths
    _allow("model.depths", depths, bool(depths) and min(depths) >= 1, "1 or more, each at least 1")
    if isinstance(model, ResNet):
        _allow("model.depths", depths, model.depth >= 2, "two blocks or more in all")
        return
    heads, stages = model.num_heads, f"one for each of {len(depths)} stages"
    _allow("model.num_heads", heads, len(heads) == len(depths) and min(heads) >= 1, stages)
    if isinstance(model, Swin):
        window = model.window_size
        _allow("model.window_size", window, window >= 1, "at least 1")
        name, given = "model.embed_dim", model.embed_dim
        widths = tuple(model.embed_dim * 2**i for i in range(len(depths)))
    else:
        name, given = "model.embed_dims", model.embed_dims
        widths = model.embed_dims
        _allow(name, given, len(widths) == len(depths), stages)
    fits = all(d >= 1 and d % n == 0 for d, n in zip(widths, heads, strict=True))
    _allow(name, given, fits, f"in each stage a multiple of model.num_heads {heads}")
    narrow = int(min(widths) * model.mlp_ratio) >= 1
    _allow("model.mlp_ratio", model.mlp_ratio, narrow, "1/width or more")


def _check_data(recipe: Recipe) -> None:
    data, model = recipe.data, recipe.model
    _allow("data.repeats", data.repeats, data.repeats >= 1, "at least 1")
    _allow(
        "model.in_chans",
        model.in_chans,
        model.in_chans == data.channels,
        f"{data.channels}, what the images have",
    )
    _allow(
        "model.num_classes",
        model.num_classes,
        model.num_classes >= data.classes,
        f"at least {data.classes}, what the data have",
    )
    for name in ("mean", "std"):
        value = getattr(data, name)
        _allow(f"data.{name}", value, len(value) == data.channels, f"{data.channels} numbers")
    _allow("data.std", data.std, min(data.std) > 0, "above 0")
    match data:
        case Digits():
            _allow(
                "data.image_size", data.image_size, data.image_size == 8, "8, what the scans have"
            )
            if data.augment:
                pixels = data.augment.pixels
                _allow("data.augment.pixels", pixels, 0 <= pixels < data.image_size, "0 to 7")
        case Images():
            _check_crop(data)
            for name in ("train_images", "classes"):
                value = getattr(data, name)
                _allow(f"data.{name}", value, value >= 1, "at least 1")
            tests = data.test_images
            _allow("data.test_images", tests, tests is None or tests >= 0, "0 or more, or None")
            _allow("data.erasing", data.erasing, 0 <= data.erasing <= 1, "in [0, 1]")
            _allow("data.flip", data.flip, 0 <= data.flip <= 1, "in [0, 1]")
            ratio = data.test_crop_ratio
            _allow("data.test_crop_ratio", ratio, 0 < ratio <= 1, "in (0, 1]")
            if mix := data.mix:
                _allow("data.mix.mixup", mix.mixup, mix.mixup >= 0, "0 or more")
                _allow("data.mix.cutmix", mix.cutmix, mix.cutmix >= 0, "0 or more")
                _allow("data.mix.switch", mix.switch, 0 <= mix.switch <= 1, "in [0, 1]")
                _allow("data.mix.group", mix.group, mix.group >= 2, "at least 2")


def _check_crop(data: Images) -> None:
    match data.crop:
        case RandomResizedCrop():
            low, high = data.crop.scale
            _allow("data.crop.scale", data.crop.scale, 0 < low <= high <= 1, "0 < low <= high <= 1")
            low, high = data.crop.ratio
            _allow("data.crop.ratio", data.crop.ratio, 0 < low <= high, "0 < low <= high")
        case SimpleRandomCrop():
            padding, most = data.crop.padding, min(sides(data.image_size)) - 1
            _allow("data.crop.padding", padding, 0 <= padding <= most, f"0 to {most}")
    match data.augment:
        case ThreeAugment():
            jitter = data.augment.color_jitter
            _allow("data.augment.color_jitter", jitter, 0 <= jitter <= 1, "in [0, 1]")
        case RandAugment():
            ops, magnitude = data.augment.operations, data.augment.magnitude
            _allow("data.augment.operations", ops, ops >= 1, "at least 1")
            _allow("data.augment.magnitude", magnitude, 0 <= magnitude <= 10, "0 to 10")
            std = data.augment.magnitude_std
            _allow("data.augment.magnitude_std", std, std >= 0, "0 or more")
        case None:
            pass


def _check_objectives(recipe: Recipe) -> None:
    if not recipe.objectives:
        raise ValueError("objectives: none given; give at least one")
    for i, objective in enumerate(recipe.objectives):
        path = f"objectives.{i}"
        _allow(f"{path}.weight", objective.weight, objective.weight >= 0, "0 or more")
        match objective:
            case BinaryCrossEntropy():
                if objective.smoothing:
                    raise ValueError(
                        f"{path}.smoothing: {objective.smoothing} with binary cross-entropy makes "
                        "every class positive (a target above the threshold is 1); choose 0"
                    )
                threshold = objective.threshold
                _allow(f"{path}.threshold", threshold, 0 <= threshold < 1, "in [0, 1)")
            case CrossEntropy():
                smoothing = objective.smoothing
                _allow(f"{path}.smoothing", smoothing, 0 <= smoothing < 1, "in [0, 1)")
            case DRLoc():
                _check_drloc(path, objective, recipe.schedule.epochs)


def _check_drloc(path: str, drloc: DRLoc, epochs: int) -> None:
    for name in ("pairs", "grid", "hidden_dim", "hidden_layers"):
        value = getattr(drloc, name)
        _allow(f"{path}.{name}", value, value is None or value >= 1, "at least 1")
    _allow(f"{path}.alpha", drloc.alpha, drloc.alpha >= 0, "0 or more")
    if drloc.unit == "cells" and drloc.offsets in ("classes", "gaussian"):
        raise ValueError(f"{path}.unit: {drloc.offsets} offsets have no unit; choose grid")
    if ramp := drloc.ramp:
        warmup, last = ramp.warmup_epochs, ramp.last
        allowed = f"0 to schedule.epochs ({epochs})"
        _allow(f"{path}.ramp.warmup_epochs", warmup, 0 <= warmup <= epochs, allowed)
        _allow(f"{path}.ramp.last", last, 0 <= last <= 1, "in [0, 1]")


def _check_optim(recipe: Recipe) -> None:
    optim, schedule = recipe.optim, recipe.schedule
    _allow("optim.lr", optim.lr, optim.lr > 0, "above 0")
    _allow("optim.betas", optim.betas, all(0 <= beta < 1 for beta in optim.betas), "two in [0, 1)")
    _allow("optim.eps", optim.eps, optim.eps > 0, "above 0")
    _allow("optim.weight_decay", optim.weight_decay, optim.weight_decay >= 0, "0 or more")
    _allow(
        "clip_norm",
        recipe.clip_norm,
        recipe.clip_norm is None or recipe.clip_norm > 0,
        "above 0, or None",
    )
    _allow("schedule.epochs", schedule.epochs, schedule.epochs >= 1, "at least 1")
    _allow(
        "schedule.warmup_epochs",
        schedule.warmup_epochs,
        0 <= schedule.warmup_epochs <= schedule.epochs,
        f"0 to schedule.epochs ({schedule.epochs})",
    )
    _allow("schedule.warmup_lr", schedule.warmup_lr, schedule.warmup_lr >= 0, "0 or more")
    _allow("schedule.min_lr", schedule.min_lr, schedule.min_lr >= 0, "0 or more")
    ema = recipe.ema
    _allow("ema", ema, ema is None or 0 < ema < 1, "above 0 and below 1, or None")
    decay = recipe.layer_decay
    _allow("layer_decay", decay, 0 < decay <= 1, "above 0, and at most 1")
    _allow("batch_size", recipe.batch_size, recipe.batch_size >= 1, "at least 1")
    _allow("seed", recipe.seed, recipe.seed >= 0, "0 or more")


def _allow(path: str, value: object, fine: bool, allowed: str) -> None:
    if not fine:
        raise ValueError(f"{path}: {value} is not allowed; it must be {allowed}")
