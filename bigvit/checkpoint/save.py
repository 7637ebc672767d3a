"""Writing a checkpoint: each rank its slices, then rank 0 the manifest, then the name."""

import json
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from bigvit.checkpoint.files import rename, sync_folder, write_json
from bigvit.checkpoint.manifest import (
    File,
    Manifest,
    Piece,
    check_tiling,
    checkpoints_in,
    step_name,
    write_manifest,
)
from bigvit.engines.engine import Engine

DTYPES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Names of dtypes in a safetensors header."""


class NotSaved(Exception):
    """A checkpoint could not be written, on this rank or another; earlier ones are untouched."""


def save(
    engine: Engine, folder: Path, batch: int, recipe: dict[str, Any], keep: int, skipped: int = 0
) -> Path:
    """Write a checkpoint into a run's checkpoints folder. Collective.

    Args:
        folder: the run's checkpoints.
        batch: global batches consumed.
        recipe: as `to_json` wrote it.
        keep: how many checkpoints to leave, the newest.
        skipped: batches consumed without an update.

    Raises:
        NotSaved: on every rank.
    """
    ranks = engine.ranks
    aside, whole = folder / f".{step_name(batch)}.aside", folder / step_name(batch)
    scalars = engine.scalars()

    def prepare() -> None:
        for left in folder.glob(".step_*.aside"):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        aside.mkdir(parents=True)

    def write() -> None:
        _write_slices(engine, aside)

    def finish() -> None:
        files, pieces = _collect(aside, ranks.world)
        write_manifest(aside, Manifest(batch, batch - skipped, recipe, scalars, files, pieces))
        if whole.exists():
            shutil.rmtree(whole)
        rename(aside, whole)
        for old in checkpoints_in(folder)[:-keep]:
            shutil.rmtree(old)

    # one step after another, all ranks knowing that the last one worked everywhere
    for step, everywhere in ((prepare, False), (write, True), (finish, False)):
        failure = None
        if everywhere or ranks.rank == 0:
            try:
                step()
            except (OSError, ValueError) as error:
                failure = error
        if ranks.agree(failure is not None):
            if ranks.rank == 0:
                shutil.rmtree(aside, ignore_errors=True)
            reason = failure or "on another rank"
            raise NotSaved(f"{whole} could not be written ({reason})") from failure
    return whole


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> File:
    """Write tensors as a safetensors file, hashed in the same pass, and flush it to the disk."""
    header: dict[str, Any] = {}
    position = 0
    for key, tensor in tensors.items():
        end = position + tensor.numel() * tensor.element_size()
        header[key] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    hasher = xxhash.xxh3_128()
    with path.open("wb") as file:
        for block in (len(text).to_bytes(8, "little"), text, *map(_bytes, tensors.values())):
            file.write(block)
            hasher.update(block)
        file.flush()
        os.fsync(file.fileno())
    return File(path.name, 8 + len(text) + position, hasher.hexdigest())


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def _write_slices(engine: Engine, folder: Path) -> None:
    """A rank's slices and, after them, the side file that says what they are."""
    path = folder / f"rank_{engine.ranks.rank:05d}.safetensors"
    tensors: dict[str, Tensor] = {}
    pieces: list[Piece] = []
    for part in engine.slices():
        if part.writer:
            dtype = DTYPES[part.dtype]
            place = (part.start, part.stop, path.name)
            piece = Piece(part.name, part.kind, dtype, part.shape, *place)
            tensors[piece.key] = part.view
            pieces.append(piece)
    file = write_tensors(path, tensors)
    side = {"file": asdict(file), "pieces": [asdict(piece) for piece in pieces]}
    write_json(path.with_suffix(".json"), side)


def _collect(folder: Path, world: int) -> tuple[tuple[File, ...], tuple[Piece, ...]]:
    """What all ranks wrote, from their side files, which are then removed."""
    sides = [folder / f"rank_{rank:05d}.json" for rank in range(world)]
    _wait_for(sides)
    values = [json.loads(side.read_text()) for side in sides]
    files = tuple(File(**value["file"]) for value in values)
    pieces = tuple(
        Piece(**{**piece, "shape": tuple(piece["shape"])})
        for value in values
        for piece in value["pieces"]
    )
    check_tiling(pieces)
    for side in sides:
        side.unlink()
    sync_folder(folder)
    return files, pieces


def _wait_for(paths: Iterable[Path], seconds: float = 60) -> None:
    """Wait until files that other hosts wrote are seen here, as on NFS they may be late."""
    deadline = time.monotonic() + seconds
    missing = [path for path in paths if not path.exists()]
    while missing and time.monotonic() < deadline:
        time.sleep(0.1)
        missing = [path for path in missing if not path.exists()]
    if missing:
        raise OSError(
            f"{missing[0].name} is not seen by rank 0 after {seconds:.0f} s; "
            "the run folder must be on a file system that all hosts share"
        )
