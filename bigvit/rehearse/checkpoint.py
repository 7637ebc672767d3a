# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""A checkpoint of many ranks without its numbers: files of the right length, and the manifest."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bigvit.checkpoint.manifest import (
    MANIFEST,
    File,
    Manifest,
    read_manifest,
    step_name,
    write_manifest,
)
from bigvit.checkpoint.rows import key_of
from bigvit.checkpoint.save import (
    DTYPES,
    collect,
    file_of,
    header_of,
    parts_of,
    side_of,
    write_side_file,
)
from bigvit.engines.engine import Slice
from bigvit.recipe import Command
from bigvit.recipe.store import to_json
from bigvit.rehearse.pieces import Pieces

NAMED = {name: dtype for dtype, name in DTYPES.items()}


def rehearse_checkpoint(
    command: Command, pieces: Pieces, dtypes: Mapping[tuple[str, str], str], world: int
) -> dict[str, Any]:
    """Write what every rank would say of its file, join that, write and read the manifest.

    Raises:
        ValueError: the pieces of a tensor are not all of its elements, each once.
    """
    total = 0
    with TemporaryDirectory() as name:
        folder = Path(name) / step_name(1)
        folder.mkdir()
        sides = [side_of(folder / file_of(rank)) for rank in range(world)]
        for rank, side in enumerate(sides):
            slices = list(_slices(pieces, dtypes, rank))
            header = header_of({key_of(s.kind, s.name): s.view for s in slices})
            size = len(header) + sum(s.view.nbytes for s in slices)
            with (folder / file_of(rank)).open("wb") as file:
                file.truncate(size)  # a hole
            of = {"file": asdict(File(file_of(rank), size, "")), **parts_of(slices)}
            write_side_file(side, of)
            total += size
        began = time.perf_counter()
        files, tensors = collect(sides)
        manifest = Manifest(
            batch=1,
            update=1,
            recipe=to_json(command.recipe),
            scalars={"optimizer_steps": 1},
            files=files,
            tensors=tensors,
        )
        write_manifest(folder, manifest)
        written = time.perf_counter()
        assert read_manifest(folder).tensors == tensors
        read = time.perf_counter()
        length = (folder / MANIFEST).stat().st_size
    return {
        "files": world + 1,
        "bytes": total + length,
        "tensors": sum(len(row.kinds) for row in tensors),
        "manifest": length,
        "write_seconds": written - began,
        "read_seconds": read - written,
    }


def _slices(pieces: Pieces, dtypes: Mapping[tuple[str, str], str], rank: int) -> Any:
    for piece in pieces.of(rank):
        if piece.writer:
            dtype = NAMED[dtypes.get((piece.name, piece.kind), "F32")]
            view = torch.empty(piece.stop - piece.start, dtype=dtype, device="meta")
            yield Slice(piece.name, piece.kind, piece.shape, piece.start, piece.stop, view, True)
