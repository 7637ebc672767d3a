"""Reading a checkpoint: at any number of ranks, stage and engine, as it is read."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bigvit.checkpoint.manifest import Damaged, Manifest, Piece, verify
from bigvit.engines.engine import Engine
from bigvit.ranks.joining import Ranks

log = logging.getLogger(__name__)


def verified(
    checkpoints: Sequence[Path], ranks: Ranks, report: Callable[[str], None] = log.warning
) -> tuple[Path, Manifest]:
    """The first of some checkpoints whose files are all what was written. Collective.

    Args:
        checkpoints: the same on every rank.
        report: told, on every rank, what is wrong with one, and what is tried next.

    Raises:
        Damaged: on every rank; it names a damaged file of each.
    """
    reasons: list[str] = []
    for i, folder in enumerate(checkpoints):
        try:
            with ranks.agree_on_error(OSError, Damaged, raised=Damaged):
                manifest = verify(folder, ranks.rank, ranks.world)
            return folder, manifest
        except Damaged as error:
            reasons.append(str(error))
        if i + 1 < len(checkpoints):
            report(f"{reasons[-1]}; going back to {checkpoints[i + 1]}")
    raise Damaged("\n  ".join(reasons))


def fill(engine: Engine, folder: Path, manifest: Manifest) -> None:
    """Fill an engine from a verified checkpoint; a rank reads its own share, one tensor after
    another. Collective.

    Raises:
        Damaged: on every rank, before a weight is changed; the checkpoint is of another model.
    """
    pieces = _by_key(manifest)
    with engine.ranks.agree_on_error(Damaged, raised=Damaged):
        for part in engine.slices():
            found = pieces.get(f"{part.kind}/{part.name}", [])
            if not found or found[0].shape != part.shape:
                raise Damaged(f"{folder} holds no {part.kind} of {part.name} {part.shape}")
    with torch.no_grad(), ExitStack() as opened:
        files = _open(folder, manifest, opened)
        for part in engine.slices():
            _read(files, pieces[f"{part.kind}/{part.name}"], part.start, part.view)
    engine.loaded(manifest.scalars)


def read_weights(
    folder: Path, kind: str = "weight", rank: int = 0, world: int = 1
) -> tuple[Manifest, dict[str, Tensor]]:
    """A checkpoint's weights and buffers, whole and in full precision, by their names in the task,
    after the rank's share of its files was verified.

    Args:
        kind: "ema" for their average; frozen weights, which have none, are their own.

    Raises:
        Damaged: a file is not what was written; the message names it.
    """
    manifest = verify(folder, rank, world)
    return manifest, dict(Stored(folder, manifest, kind))


class Stored(Mapping[str, Tensor]):
    """What `read_weights` reads, of a verified checkpoint: each tensor when it is asked for. The
    files stay open as long as this is kept, also where the checkpoint is pruned meanwhile."""

    def __init__(self, folder: Path, manifest: Manifest, kind: str = "weight") -> None:
        self.files = _open(folder, manifest, ExitStack())
        self.pieces: dict[str, list[Piece]] = {}
        by_key = _by_key(manifest)
        for pieces in by_key.values():
            first = pieces[0]
            averaged = kind == "ema" and f"ema/{first.name}" in by_key
            if first.kind in ("ema" if averaged else "weight", "buffer"):
                self.pieces[first.name] = pieces

    def below(self, prefix: str) -> "Stored":
        """Those whose names begin so, by the rest of their names."""
        found = copy(self)
        named = self.pieces.items()
        found.pieces = {n.removeprefix(prefix): p for n, p in named if n.startswith(prefix)}
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's, without reading it."""
        return self.pieces[name][0].shape

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """A tensor, whole; no other memory than its own and one piece's is taken."""
        pieces = self.pieces[name]
        tensor = torch.empty(pieces[0].size, dtype=dtype)
        _read(self.files, pieces, 0, tensor)
        return tensor.view(pieces[0].shape)

    def __getitem__(self, name: str) -> Tensor:
        return self.read(name, torch.float32)

    def __contains__(self, name: object) -> bool:
        return name in self.pieces  # by default it would be read

    def __iter__(self) -> Iterator[str]:
        return iter(self.pieces)

    def __len__(self) -> int:
        return len(self.pieces)


def _by_key(manifest: Manifest) -> dict[str, list[Piece]]:
    pieces: dict[str, list[Piece]] = {}
    for piece in manifest.pieces:
        pieces.setdefault(piece.key, []).append(piece)
    return pieces


def _open(folder: Path, manifest: Manifest, opened: ExitStack) -> dict[str, Any]:
    """A checkpoint's files by name, open until `opened` is closed."""
    files: dict[str, Any] = {}
    for file in manifest.files:
        path = folder / file.name
        try:
            files[file.name] = opened.enter_context(safe_open(path, framework="pt"))
        except (OSError, RuntimeError, SafetensorError) as error:  # torch's, of one that is gone
            raise Damaged(f"{path} cannot be opened ({error})") from None
    return files


def _read(files: dict[str, Any], pieces: list[Piece], start: int, view: Tensor) -> None:
    """Fill a view of elements [start, start + len(view)) from the pieces that overlap it."""
    stop = start + len(view)
    for piece in pieces:
        first, last = max(start, piece.start), min(stop, piece.stop)
        if first < last:
            part = files[piece.file].get_slice(piece.key)[first - piece.start : last - piece.start]
            view[first - start : last - start].copy_(part)
