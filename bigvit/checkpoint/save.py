"""Writing checkpoints: a copy in host memory, then in the background each rank its slices, and
rank 0 the manifest and the name. A reader sees all of a checkpoint or nothing."""

import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import xxhash
from torch import Tensor

from bigvit.checkpoint.files import rename, sync_folder
from bigvit.checkpoint.manifest import (
    File,
    Manifest,
    step_name,
    verify_file,
    write_manifest,
)
from bigvit.checkpoint.retention import discard, prune, remove_leftovers
from bigvit.checkpoint.rows import Part, Row, joined, key_of, label
from bigvit.engines.engine import Engine, Slice

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

PATIENCE = 60.0  # seconds until files that other hosts wrote must be seen, which on NFS may be late
CHUNK = 1 << 22  # bytes hashed and written at once


class NotSaved(Exception):
    """A checkpoint could not be written, on this rank or another; earlier ones are untouched."""


@dataclass
class _Writing:
    """A checkpoint on its way to the disk."""

    whole: Path
    aside: Path
    manifest: Manifest  # without files and tensors
    tensors: dict[str, Tensor]  # of this rank, by "kind/name"
    parts: dict[str, list[Any]]  # of this rank, as `parts_of` has them
    error: Exception | None = None  # why it failed on this rank
    written: threading.Event = field(default_factory=threading.Event)  # this rank's part, or failed
    given_up: threading.Event = field(default_factory=threading.Event)
    deadline: float = float("inf")  # for seeing what others wrote


class Saver:
    """Writes an engine's checkpoints into a run's folder of them, one at a time.

    Training goes on while files are written: `save` waits for the checkpoint before, and for a copy
    of this rank's slices. No collective runs in the background.
    """

    def __init__(
        self,
        engine: Engine,
        folder: Path,
        recipe: dict[str, Any],
        keep: int,
        keep_every: int | None = None,
        data: dict[str, Any] | None = None,
        background: bool = True,
        given: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Collective.

        Args:
            folder: the run's checkpoints; what a killed job left half written there is removed.
            recipe: as `to_json` wrote it.
            keep: how many checkpoints to leave, the newest.
            keep_every: leave those at a multiple of this many batches, too.
            data: what the images are, to be compared when the run is resumed.
            background: false writes without a copy, and returns when all is written.
            given: digests of what the run was given beside its recipe, by the manifest's fields, to
                be compared likewise.
        """
        self.engine, self.folder, self.recipe = engine, folder, recipe
        self.keep, self.keep_every, self.data = keep, keep_every, data
        self.background, self.given = background, given
        # on rank 0, to be emptied: batches of new whole checkpoints, and what went wrong beside
        self.saved: list[int] = []
        self.warnings: list[str] = []
        ranks = engine.ranks
        size = sum(part.view.nbytes for part in engine.slices() if part.writer)
        self._copy = torch.empty(
            size if background else 0, dtype=torch.uint8, pin_memory=ranks.device.type != "cpu"
        )
        self._copy.zero_()  # its pages are made now, not in the first copy
        self.best: tuple[int, ...] = ()  # batches of evaluations, the best first: not pruned
        self._writing: _Writing | None = None
        self._thread = threading.Thread()
        self._stuck: set[Path] = set()  # old checkpoints that cannot be removed, as was said
        if ranks.rank == 0:  # before the others come through below, and write there
            remove_leftovers(folder)
        self._attempt = int(ranks.sum(torch.tensor(secrets.randbits(32) * (ranks.rank == 0))))

    @property
    def failed(self) -> bool:
        """Whether this rank knows that the checkpoint under way will not be whole."""
        return self._writing is not None and self._writing.error is not None

    def save(
        self,
        batch: int,
        skipped: int = 0,
        evaluation_due: bool = False,
        losses: Sequence[float] = (),
        never: Sequence[int] = (),
    ) -> Path:
        """Begin to write a checkpoint, when the one before is whole. Collective.

        Args:
            batch: global batches consumed.
            skipped: those of them without an update.
            evaluation_due: whether an evaluation at this batch was left for later.
            losses: that the loss guard looks back at.
            never: batches that are never trained on.

        Raises:
            NotSaved: on every rank; the one before could not be written, or this one if it is not
                written in the background.
        """
        self.wait()
        self._attempt += 1  # rank 0 may still be removing one that failed
        whole = self.folder / step_name(batch)
        aside = self.folder / f".{whole.name}.{self._attempt:08x}.aside"
        manifest = Manifest(
            batch=batch,
            update=batch - skipped,
            recipe=self.recipe,
            scalars=self.engine.scalars(),
            files=(),
            tensors=(),
            data=self.data,
            evaluation_due=evaluation_due,
            losses=tuple(losses),
            skipped_batches=tuple(never),
            **self.given,
        )
        self._writing = _Writing(whole, aside, manifest, *self._slices())
        self._thread = threading.Thread(target=self._write, args=(self._writing,), daemon=True)
        self._thread.start()
        if not self.background:
            self.wait()
        return whole

    def wait(self) -> None:
        """Wait until the checkpoint under way is whole. Collective.

        Raises:
            NotSaved: on every rank.
        """
        if (writing := self._writing) is None:
            return
        ranks = self.engine.ranks
        writing.written.wait()
        if ranks.agree(writing.error is not None):
            writing.given_up.set()
        writing.deadline = time.monotonic() + PATIENCE
        self._thread.join()
        self._writing = None
        error = writing.error
        if reason := ranks.first_text("" if error is None else str(error) or repr(error)):
            if ranks.rank == 0:
                shutil.rmtree(writing.aside, ignore_errors=True)
            raise NotSaved(f"{writing.whole} could not be written ({reason})")

    def _slices(self) -> tuple[dict[str, Tensor], dict[str, list[Any]]]:
        """What this rank writes: copied where training goes on meanwhile."""
        parts = [part for part in self.engine.slices() if part.writer]
        parts.sort(key=lambda part: -part.dtype.itemsize)  # aligned, wherever the one before ends
        tensors = {key_of(part.kind, part.name): part.view for part in parts}
        if self.background:
            position = 0
            for name, view in tensors.items():
                end = position + view.nbytes
                tensors[name] = self._copy[position:end].view(view.dtype)
                tensors[name].copy_(view, non_blocking=True)
                position = end
        if self.engine.ranks.device.type != "cpu":
            torch.accelerator.synchronize()
        return tensors, parts_of(parts)

    def _write(self, writing: _Writing) -> None:
        """Write this rank's part, and on rank 0 what makes it a checkpoint. In the background."""
        ranks = self.engine.ranks
        try:
            writing.aside.mkdir(parents=True, exist_ok=True)
            path = writing.aside / file_of(ranks.rank)
            file = write_tensors(path, writing.tensors)
            verify_file(writing.aside, file)
            write_side_file(side_of(path), {"file": asdict(file), **writing.parts})
            writing.written.set()
            if ranks.rank == 0:
                self._finish(writing)
        except Exception as error:  # told to all ranks by `wait`
            writing.error = error
        finally:
            writing.written.set()

    def _finish(self, writing: _Writing) -> None:
        """Wait for the other ranks' parts; then the manifest, the name, and older ones go."""
        names = [file_of(rank) for rank in range(self.engine.ranks.world)]
        sides = [side_of(writing.aside / name) for name in names]
        if not _seen(sides, writing):
            return  # another rank has failed, and says so
        files, tensors = collect(sides)
        write_manifest(writing.aside, replace(writing.manifest, files=files, tensors=tensors))
        for side in sides:
            side.unlink()
        sync_folder(writing.aside)
        if os.path.lexists(writing.whole):
            discard(writing.whole)
        rename(writing.aside, writing.whole)
        self.saved.append(writing.manifest.batch)
        stuck = prune(self.folder, self.keep, self.keep_every, self.best)
        self.warnings += [why for path, why in stuck.items() if path not in self._stuck]
        self._stuck = set(stuck)


def parts_of(slices: Iterable[Slice]) -> dict[str, list[Any]]:
    """What a side file says of a rank's slices, in columns, which are read fast: the `label` of
    each tensor, in which the kinds stand together that are cut alike, and its elements there."""
    kinds: dict[tuple[str, tuple[int, ...], int, int], dict[str, str]] = {}
    for part in slices:
        of = kinds.setdefault((part.name, part.shape, part.start, part.stop), {})
        of[part.kind] = DTYPES[part.dtype]
    return {
        "labels": [label(name, shape, of) for (name, shape, _, _), of in kinds.items()],
        "starts": [start for _, _, start, _ in kinds],
        "stops": [stop for _, _, _, stop in kinds],
    }


def header_of(tensors: Mapping[str, Tensor]) -> bytes:
    """What a safetensors file of them begins with."""
    header: dict[str, Any] = {}
    position = 0
    for key, tensor in tensors.items():
        end = position + tensor.nbytes
        header[key] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> File:
    """Write tensors as a safetensors file, hashed in the same pass, and flush it to the disk."""
    header = header_of(tensors)
    hasher = xxhash.xxh3_128()
    with path.open("wb") as file:
        for block in (header, *map(_bytes, tensors.values())):
            for start in range(0, len(block), CHUNK):
                chunk = memoryview(block)[start : start + CHUNK]  # hashed while still in the cache
                file.write(chunk)
                hasher.update(chunk)
        file.flush()
        os.fsync(file.fileno())
    size = len(header) + sum(tensor.nbytes for tensor in tensors.values())
    return File(path.name, size, hasher.hexdigest())


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def file_of(rank: int) -> str:
    return f"rank_{rank:05d}.safetensors"


def side_of(path: Path) -> Path:
    """What says that a rank's file is whole, and what it holds."""
    return path.with_suffix(".json")


def write_side_file(side: Path, value: dict[str, Any]) -> None:
    """Write a side file, whole or absent. Rank 0 may rename the folder as soon as it sees the last
    one, so it is touched no more, nor flushed: rank 0 does that, and removes it."""
    aside = side.with_suffix(".aside")
    aside.write_text(json.dumps(value))
    aside.rename(side)


def _seen(sides: list[Path], writing: _Writing) -> bool:
    """Wait until rank 0 sees all side files. A folder is listed anew every time: NFS may remember
    for a while that a name was not there.

    Returns:
        False where another rank has given up.

    Raises:
        OSError: all were written, but are not seen here.
    """
    wait = 0.01
    while missing := sorted({side.name for side in sides} - set(os.listdir(writing.aside))):
        if writing.given_up.wait(wait):
            return False
        if time.monotonic() > writing.deadline:
            raise OSError(
                f"{missing[0]} is not seen by rank 0 after {PATIENCE:.0f} s; "
                "the run folder must be on a file system that all hosts share"
            )
        wait = min(2 * wait, 1.0)
    return True


def collect(sides: Sequence[Path]) -> tuple[tuple[File, ...], tuple[Row, ...]]:
    """What all ranks wrote, from their side files."""
    files: list[File] = []

    def parts() -> Iterator[Part]:
        for number, side in enumerate(sides):
            value = json.loads(side.read_text())
            files.append(File(**value["file"]))
            columns = (value[name] for name in ("labels", "starts", "stops"))
            yield from zip(repeat(number), *columns, strict=False)

    tensors = joined(parts())
    return tuple(files), tensors
