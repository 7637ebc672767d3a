"""Weights for the rest of the world: a folder that timm loads."""

import fcntl
import json
import logging
import os
import re
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bigvit.checkpoint.files import rename
from bigvit.checkpoint.manifest import verify_file
from bigvit.checkpoint.model import read_checkpoint
from bigvit.checkpoint.resampling import resampled
from bigvit.checkpoint.run import class_names, run_of
from bigvit.checkpoint.save import write_tensors
from bigvit.checkpoint.weights import CONFIG, DIGEST, EXPORTED
from bigvit.models import build
from bigvit.models.folding import folded, without_shifts
from bigvit.models.timm_skeleton import exported
from bigvit.recipe import ImageSize, Recipe, ResMLP, Timm, sides

log = logging.getLogger(__name__)
OURS = re.compile(rf"{EXPORTED}|{CONFIG}|\.({EXPORTED}|{CONFIG})(\.[0-9a-f]{{8}})?\.aside")


def export(
    path: Path,
    folder: Path,
    image_size: ImageSize | None = None,
    ema: bool = False,
    fold: bool = False,
) -> Path:
    """Write the model of a checkpoint, or of a run folder's newest, without its training heads, so
    that `timm.create_model("local-dir:FOLDER", pretrained=True)` loads it with the same logits.

    Args:
        image_size: for images of another size than the recipe's; what knows where patches lie is
            resampled.
        ema: the average of the weights instead of them.
        fold: put ResMLP's affine maps into the linear layers beside them, as far as they can be.

    Raises:
        Damaged: no checkpoint is whole.
        OSError: the folder cannot be written.
        ValueError: timm has no such model, or the folder holds something else, or another export
            is being written there, or there is nothing to fold.
    """
    _refuse_strangers(folder)
    found = read_checkpoint(path, ema)
    recipe, model = found.recipe, dict(found.model)
    if fold and not isinstance(recipe.model, ResMLP):
        kind = type(recipe.model).__name__
        raise ValueError(f"--fold: {kind} has no affine maps, ResMLP has; leave it out")
    size = image_size or recipe.data.image_size
    source, grid = recipe.model.grid(recipe.data.image_size), recipe.model.grid(size)
    if recipe.model.described and grid != source:
        model |= resampled(model, source, grid, recipe.resampling)
    classes = class_names(run_of(found.checkpoint), recipe.model.num_classes)
    described = None if recipe.model.described else _of_timm(recipe, size, model)
    config = timm_config(recipe, size, classes, described)  # refused before anything is written
    if isinstance(recipe.model, ResMLP):
        model = folded(model) if fold else without_shifts(model)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        _publish(folder, model, config)
    return folder


def _refuse_strangers(folder: Path) -> None:
    """Raise ValueError where a folder holds what no export writes."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder}: it is not a folder; choose another")
    names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    if strangers := [name for name in names if not OURS.fullmatch(name)]:
        raise ValueError(f"--out {folder}: it holds other files ({strangers[0]}); choose another")


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """While one export is written; the lock is the folder's own, and frees itself."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        raise ValueError(
            f"--out {folder}: another export is being written there; wait for it, or choose another"
        ) from None
    except OSError as error:
        log.warning("%s cannot be locked (%s): let no other export write there", folder, error)
    try:
        yield
    finally:
        os.close(opened)


def _publish(folder: Path, model: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Write weights and config aside, read them back, and rename them. A reader sees both of one
    export, or no config: the old one goes before its weights are replaced."""
    _refuse_strangers(folder)
    for leftover in folder.glob(".*.aside"):  # of an export that was killed
        leftover.unlink()
    attempt = f"{secrets.randbits(32):08x}.aside"
    weights, described = (folder / f".{name}.{attempt}" for name in (EXPORTED, CONFIG))
    try:
        written = write_tensors(weights, model)
        verify_file(folder, written)
        text = json.dumps({**config, DIGEST: written.digest}, indent=2) + "\n"
        with described.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if described.read_text() != text:
            raise OSError(f"{described} is not what was written")
        own = weights.stat().st_ino
        (folder / CONFIG).unlink(missing_ok=True)
        rename(weights, folder / EXPORTED)
        rename(described, folder / CONFIG)
        if (folder / EXPORTED).stat().st_ino != own:  # where the folder could not be locked
            (folder / CONFIG).unlink(missing_ok=True)
            raise ValueError(f"--out {folder}: another export wrote there meanwhile; export again")
    finally:
        for aside in (weights, described):
            aside.unlink(missing_ok=True)


def _of_timm(recipe: Recipe, size: ImageSize, weights: dict[str, Tensor]) -> dict[str, Any]:
    """What is said of timm's own model, whose weights are brought to this size."""
    assert isinstance(recipe.model, Timm)
    with torch.device("meta"):
        model = build(recipe.model, size)
    described, constant = exported(recipe.model, size)
    weights.update(model.adapted(weights) | constant)
    return described


def timm_config(
    recipe: Recipe,
    size: ImageSize,
    classes: list[str] | None,
    described: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """config.json as timm reads it: architecture, its arguments, how images become inputs."""
    model, data = recipe.model, recipe.data
    height, width = sides(size)
    described = described or model.timm(size)
    return {
        **described,
        "num_classes": model.num_classes,
        # where transformers looks for its id2label; timm reads it in either place
        **({} if classes is None else {"label_names": classes}),
        "pretrained_cfg": {
            "input_size": [model.in_chans, height, width],
            "fixed_input_size": True,
            "interpolation": "bicubic",
            "crop_pct": getattr(data, "test_crop_ratio", 1.0),
            "crop_mode": "center",
            "mean": list(data.mean),
            "std": list(data.std),
            "num_classes": model.num_classes,
            "pool_size": None,
            **described["pretrained_cfg"],
            "label_names": classes,
        },
    }
