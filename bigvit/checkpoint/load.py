"""Reading a checkpoint: at any number of ranks, stage and engine, as it is read."""

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from bigvit.checkpoint.manifest import Damaged, Manifest, Piece, read_manifest, verify_file
from bigvit.engines.engine import Engine


def load(engine: Engine, folder: Path) -> Manifest:
    """Fill an engine from a checkpoint, after every file was verified. Collective.

    Raises:
        Damaged: on every rank, before a weight is changed.
    """
    ranks = engine.ranks
    manifest = read_manifest(folder)
    pieces = _by_key(manifest)
    failure = None
    try:
        for file in manifest.files[ranks.rank :: ranks.world]:
            verify_file(folder, file)
        for part in engine.slices():
            found = pieces.get(f"{part.kind}/{part.name}", [])
            if not found or found[0].shape != part.shape:
                raise Damaged(f"{folder} holds no {part.kind} of {part.name} {part.shape}")
    except (OSError, Damaged) as error:
        failure = error
    if ranks.agree(failure is not None):
        raise failure or Damaged(f"{folder} is damaged, another rank says")
    with torch.no_grad():
        for part in engine.slices():
            _read(folder, pieces[f"{part.kind}/{part.name}"], part.start, part.view)
    engine.loaded(manifest.scalars)
    return manifest


def read_weights(folder: Path, kind: str = "weight") -> tuple[Manifest, dict[str, Tensor]]:
    """A verified checkpoint's weights and buffers, whole and in full precision, by their names in
    the task.

    Args:
        kind: "ema" for their average; frozen weights, which have none, are their own.

    Raises:
        Damaged: a file is not what was written; the message names it.
        ValueError: it holds no average.
    """
    manifest = read_manifest(folder)
    by_key = _by_key(manifest)
    if kind == "ema" and not any(key.startswith("ema/") for key in by_key):
        raise ValueError(
            f"--ema: {folder} holds no average of the weights, as its recipe's ema is None; leave "
            "--ema out"
        )
    for file in manifest.files:
        verify_file(folder, file)
    weights: dict[str, Tensor] = {}
    for pieces in by_key.values():
        first = pieces[0]
        averaged = kind == "ema" and f"ema/{first.name}" in by_key
        if first.kind in ("ema" if averaged else "weight", "buffer"):
            tensor = torch.empty(first.size)
            _read(folder, pieces, 0, tensor)
            weights[first.name] = tensor.view(first.shape)
    return manifest, weights


def read_model(folder: Path, kind: str = "weight") -> tuple[Manifest, dict[str, Tensor]]:
    """A verified checkpoint's model by its own names, without what only training needs.

    Args:
        kind: "ema" for the average of its weights.

    Raises:
        Damaged: a file is not what was written; the message names it.
        ValueError: it holds no average.
    """
    manifest, weights = read_weights(folder, kind)
    prefix = "model."
    named = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
    return manifest, named


def _by_key(manifest: Manifest) -> dict[str, list[Piece]]:
    pieces: dict[str, list[Piece]] = {}
    for piece in manifest.pieces:
        pieces.setdefault(piece.key, []).append(piece)
    return pieces


def _read(folder: Path, pieces: list[Piece], start: int, view: Tensor) -> None:
    """Fill a view of elements [start, start + len(view)) from the pieces that overlap it."""
    stop = start + len(view)
    for piece in pieces:
        first, last = max(start, piece.start), min(stop, piece.stop)
        if first < last:
            with safe_open(folder / piece.file, framework="pt") as file:
                part = file.get_slice(piece.key)[first - piece.start : last - piece.start]
            view[first - start : last - start].copy_(part)
