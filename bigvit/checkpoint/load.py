"""Reading a checkpoint: at any number of ranks, stage and engine, as it is read."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bigvit.checkpoint.manifest import (
    Damaged,
    Manifest,
    as_text,
    from_text,
    read_manifest,
    verify,
    verify_share,
)
from bigvit.checkpoint.rows import Row, key_of
from bigvit.engines.engine import Engine
from bigvit.ranks.joining import Ranks

log = logging.getLogger(__name__)


def handed(folder: Path, ranks: Ranks) -> Manifest:
    """A checkpoint's manifest, which rank 0 alone reads and judges. Collective.

    Raises:
        Damaged: on every rank; the message names the file.
    """
    text = ""
    with ranks.agree_on_error(OSError, Damaged, raised=Damaged):
        if ranks.rank == 0:
            text = as_text(read_manifest(folder))
    return from_text(ranks.handed(text))


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
            manifest = handed(folder, ranks)
            with ranks.agree_on_error(OSError, Damaged, raised=Damaged):
                verify_share(folder, manifest, ranks.rank, ranks.world)
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
    rows, parts = manifest.by_key(), list(engine.slices())
    with torch.no_grad(), ExitStack() as opened:
        with engine.ranks.agree_on_error(Damaged, raised=Damaged):
            numbers = set[int]()
            for part in parts:
                row = rows.get(key_of(part.kind, part.name))
                if row is None or row.shape != part.shape:
                    raise Damaged(f"{folder} holds no {part.kind} of {part.name} {part.shape}")
                numbers |= {number for number, _, _ in row.pieces(part.start, part.stop)}
            files = _open(folder, manifest, numbers, opened)
        for part in parts:
            of = key_of(part.kind, part.name)
            _read(files, rows[of], of, part.start, part.view)
    engine.loaded(manifest.scalars)


def read_weights(folder: Path, kind: str = "weight") -> tuple[Manifest, dict[str, Tensor]]:
    """A checkpoint's weights and buffers, whole and in full precision, by their names in the task,
    after its files were verified.

    Args:
        kind: "ema" for their average; frozen weights, which have none, are their own.

    Raises:
        Damaged: a file is not what was written; the message names it.
    """
    manifest = verify(folder)
    return manifest, dict(Stored(folder, manifest, kind))


class Stored(Mapping[str, Tensor]):
    """What `read_weights` reads, of a verified checkpoint: each tensor when it is asked for. The
    files stay open as long as this is kept, also where the checkpoint is pruned meanwhile."""

    def __init__(self, folder: Path, manifest: Manifest, kind: str = "weight") -> None:
        self.files = _open(folder, manifest, range(len(manifest.files)), ExitStack())
        self.rows: dict[str, tuple[Row, str]] = {}  # with the name in the files
        rows = manifest.by_key()
        for row in manifest.tensors:
            averaged = kind == "ema" and key_of("ema", row.name) in rows
            for of in row.kinds:
                if of in ("ema" if averaged else "weight", "buffer"):
                    self.rows[row.name] = row, key_of(of, row.name)

    def below(self, prefix: str) -> "Stored":
        """Those whose names begin so, by the rest of their names."""
        found = copy(self)
        named = self.rows.items()
        found.rows = {n.removeprefix(prefix): row for n, row in named if n.startswith(prefix)}
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's, without reading it."""
        return self.rows[name][0].shape

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """A tensor, whole; no other memory than its own and one piece's is taken."""
        row, of = self.rows[name]
        tensor = torch.empty(row.size, dtype=dtype)
        _read(self.files, row, of, 0, tensor)
        return tensor.view(row.shape)

    def __getitem__(self, name: str) -> Tensor:
        return self.read(name, torch.float32)

    def __contains__(self, name: object) -> bool:
        return name in self.rows  # by default it would be read

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def _open(
    folder: Path, manifest: Manifest, numbers: Iterable[int], opened: ExitStack
) -> dict[int, Any]:
    """Some of a checkpoint's files by their numbers, open until `opened` is closed."""
    files: dict[int, Any] = {}
    for number in sorted(numbers):
        path = folder / manifest.files[number].name
        try:
            files[number] = opened.enter_context(safe_open(path, framework="pt"))
        except (OSError, RuntimeError, SafetensorError) as error:  # torch's, of one that is gone
            raise Damaged(f"{path} cannot be opened ({error})") from None
    return files


def _read(files: Mapping[int, Any], row: Row, of: str, start: int, view: Tensor) -> None:
    """Fill a view of elements [start, start + len(view)) of a tensor, whose name in the files is
    given, from the pieces that overlap it."""
    stop = start + len(view)
    for number, first, last in row.pieces(start, stop):
        begin, end = max(start, first), min(stop, last)
        view[begin - start : end - start].copy_(
            files[number].get_slice(of)[begin - first : end - first]
        )
