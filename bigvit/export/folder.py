"""Weights for the rest of the world: a folder that timm loads."""

import fcntl
import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bigvit.checkpoint.files import rename
from bigvit.checkpoint.manifest import verify_file
from bigvit.checkpoint.model import Found, read_checkpoint
from bigvit.checkpoint.resampling import resampled
from bigvit.checkpoint.run import class_names, run_of
from bigvit.checkpoint.save import write_tensors
from bigvit.checkpoint.trained import looked_at
from bigvit.checkpoint.weights import CONFIG, DIGEST, EXPORTED, fit, given_of
from bigvit.export import card
from bigvit.export.backbone import config_of, trunk_of, without_heads
from bigvit.export.onnx import ONNX, write_onnx
from bigvit.models import Backbone, build
from bigvit.models.folding import folded, without_shifts
from bigvit.models.timm_skeleton import exported
from bigvit.recipe import ImageSize, Recipe, ResMLP, Swin, Timm, sides

log = logging.getLogger(__name__)
FILES = (EXPORTED, card.README, ONNX, f"{ONNX}.data", CONFIG)
"""What an export may hold, in the order in which it is put in place: the config comes last."""

OF_ONE = "|".join(map(re.escape, FILES))
OURS = re.compile(
    rf"{OF_ONE}|\.export\.[0-9a-f]{{8}}\.aside|\.({EXPORTED}|{CONFIG})(\.[0-9a-f]{{8}})?\.aside"
)
"""Those, and what an export that was killed left; the last are an older bigvit's."""


def export(
    path: Path,
    folder: Path,
    image_size: ImageSize | None = None,
    ema: bool = False,
    fold: bool = False,
    *,
    license: str | None = None,
    onnx: bool = False,
    backbone: bool = False,
    repo: str | None = None,
    say: Callable[[str], None] = log.info,
) -> Path:
    """Write the model of a checkpoint, or of a run folder's newest, without its training heads, so
    that `timm.create_model("local-dir:FOLDER", pretrained=True)` loads it with the same logits; and
    a model card beside it.

    Args:
        image_size: for images of another size than the recipe's; what knows where patches lie is
            resampled.
        ema: the average of the weights instead of them.
        fold: put ResMLP's affine maps into the linear layers beside them, as far as they can be.
        license: of the weights, by the hub's name for it; None: the card says that there is none.
        onnx: write model.onnx, too.
        backbone: the trunk alone, whose maps `features_only=True` gives.
        repo: where the folder is to lie on the hub, USER/NAME; it is named in the card.
        say: told how far ONNX Runtime's logits are from torch's.

    Raises:
        Damaged: no checkpoint is whole.
        OSError: the folder cannot be written.
        ValueError: the model takes no images of that size, or timm has no such model, or ONNX
            cannot take it, or the folder holds something else, or another export is being written
            there, or there is nothing to fold.
    """
    _refuse_strangers(folder)
    found = read_checkpoint(path, ema)
    recipe, model = found.recipe, dict(found.model)
    if fold and not isinstance(recipe.model, ResMLP):
        kind = type(recipe.model).__name__
        raise ValueError(f"--fold: {kind} has no affine maps, ResMLP has; leave it out")
    if fold and backbone:
        raise ValueError("--fold: it changes maps, which --backbone is for; leave one out")
    if not backbone and recipe.dense is not None:
        raise ValueError(
            f"{type(recipe.data).__name__} runs train no head that classifies, and timm has no "
            "other; --backbone exports the trunk"
        )
    size = image_size or recipe.data.image_size
    looked_at(recipe, image_size, None)
    if backbone:
        recipe, model = replace(recipe, model=trunk_of(recipe)), without_heads(model)
    source, grid = recipe.model.grid(recipe.data.image_size), recipe.model.grid(size)
    if recipe.model.described and grid != source:
        model |= resampled(model, source, grid, recipe.resampling)
    if isinstance(recipe.model, Swin) and image_size is not None:  # its windows may be others
        model |= {n: w for n, w in _ours(found, size).state_dict().items() if n in model}
    classes = class_names(run_of(found.checkpoint), recipe.model.num_classes)
    described = None if recipe.model.described else _of_timm(recipe, size, model)
    config = timm_config(recipe, size, classes, described)  # refused before anything is written
    if backbone:
        config = config_of(recipe, config, size)
    if isinstance(recipe.model, ResMLP):
        model = folded(model) if fold else without_shifts(model)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder), _aside(folder) as aside:
        digest = _write_weights(aside, model, config)
        difference = None
        if onnx:
            difference = write_onnx(aside, type(recipe.model).__name__, _ours(found, size))
            say(f"{ONNX}: its logits differ from torch's by {difference:.1e} at most")
        about = card.About(
            folder=folder.absolute().name,
            repo=repo,
            license=license,
            size=size,
            ema=ema,
            folded=fold,
            classes=classes,
            architecture=config["architecture"],
            onnx=difference,
            digest=digest,
            backbone=backbone,
        )
        (aside / card.README).write_text(card.card_of(found, about))
        _publish(folder, aside)
    return folder


def _refuse_strangers(folder: Path) -> None:
    """Raise ValueError where a folder holds what no export writes."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder}: it is not a folder; choose another")
    names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    if strangers := [name for name in names if not OURS.fullmatch(name)]:
        raise ValueError(f"--out {folder}: it holds other files ({strangers[0]}); choose another")
    if card.README in names and not card.is_ours(folder / card.README):
        raise ValueError(
            f"--out {folder}: {card.README} there is not as an export wrote it; keep it elsewhere, "
            "or choose another"
        )


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


@contextmanager
def _aside(folder: Path) -> Generator[Path]:
    """A folder below, for what is not whole yet; what killed exports left of theirs is removed."""
    _refuse_strangers(folder)
    for leftover in folder.glob(".*.aside"):
        _remove(leftover)
    aside = folder / f".export.{secrets.randbits(32):08x}.aside"
    aside.mkdir()
    try:
        yield aside
    finally:
        _remove(aside)


def _remove(leftover: Path) -> None:
    if not leftover.is_dir():
        leftover.unlink(missing_ok=True)
        return
    for name in FILES:
        (leftover / name).unlink(missing_ok=True)
    leftover.rmdir()


def _write_weights(aside: Path, model: dict[str, Tensor], config: dict[str, Any]) -> str:
    """Write weights and config, and read them back; returns the weights' digest."""
    written = write_tensors(aside / EXPORTED, model)
    verify_file(aside, written)
    text = json.dumps({**config, DIGEST: written.digest}, indent=2) + "\n"
    (aside / CONFIG).write_text(text)
    if (aside / CONFIG).read_text() != text:
        raise OSError(f"{aside / CONFIG} is not what was written")
    return written.digest


def _publish(folder: Path, aside: Path) -> None:
    """Rename what is whole. A reader sees the files of one export, or no config: the old one goes
    before its weights are replaced, and so does what the new one does not have."""
    _refuse_strangers(folder)
    new = [name for name in FILES if (aside / name).exists()]
    own = {name: (aside / name).stat().st_ino for name in new}
    for name in new:
        with (aside / name).open("rb") as file:
            os.fsync(file.fileno())
    for name in (CONFIG, *(name for name in FILES if name not in new)):
        (folder / name).unlink(missing_ok=True)
    for name in new:
        rename(aside / name, folder / name)
    if any((folder / name).stat().st_ino != own[name] for name in new):
        (folder / CONFIG).unlink(missing_ok=True)  # the folder could not be locked
        raise ValueError(f"--out {folder}: another export wrote there meanwhile; export again")


def _ours(found: Found, size: ImageSize) -> Backbone:
    """The run's own model, which answers for what is exported."""
    recipe = found.recipe
    model = build(recipe.model, size)
    fit(given_of(recipe, found.model), model, recipe.model.grid(size), recipe.resampling)
    return model.eval()


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
