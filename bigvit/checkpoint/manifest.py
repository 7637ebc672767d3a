"""What a checkpoint holds, and the checks that tell a whole one from a damaged one. No torch here.

step_00012000/manifest.json               what stands where, with a digest of itself
step_00012000/rank_00003.safetensors      a rank's slices, flattened, by "kind/name"
"""

import json
import math
import re
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import xxhash

from bigvit.checkpoint.files import write_json
from bigvit.recipe.bounds import MOST_UPDATES, Bound, shown
from bigvit.recipe.store import build
from bigvit.recipe.words import fault, read_json

FORMAT = 1
MANIFEST = "manifest.json"
STEP = re.compile(r"step_([0-9]{8})")
BYTES = dict(F64=8, F32=4, F16=2, BF16=2, I64=8, I32=4, I16=2, I8=1, U8=1, BOOL=1)
"""What an element takes in a file, by its dtype as safetensors names it."""


@dataclass(frozen=True)
class Piece:
    """Elements [start, stop) of a flattened tensor, in a file."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    file: str

    @property
    def key(self) -> str:
        """The tensor's name in its file."""
        return f"{self.kind}/{self.name}"

    @property
    def size(self) -> int:
        """Elements of the whole tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class File:
    """A file as it was written."""

    name: str
    bytes: int
    digest: str  # xxh3_128, hex


@dataclass(frozen=True)
class Manifest:
    """A checkpoint's list of contents."""

    batch: int  # global batches consumed
    update: int  # updates applied: fewer where fp16 skipped some
    recipe: dict[str, Any]  # as `to_json` wrote it
    scalars: dict[str, Any]
    files: tuple[File, ...]
    pieces: tuple[Piece, ...]
    data: dict[str, Any] | None = None  # what the images were; None: not written yet, in older ones
    evaluation_due: bool = False  # the run was stopped before the evaluation at this batch
    losses: tuple[float, ...] = ()  # of the updates before, as far as --loss-jump looks back


SCALARS = {
    "optimizer_steps": Bound(0, MOST_UPDATES),
    "loss_scale": Bound(0.0, 2.0**127, above=True),
    "good_updates": Bound(0, MOST_UPDATES),
}
"""What the scalars may be that engines read."""

PIECE = [(field.name, list if field.name == "shape" else field.type) for field in fields(Piece)]
"""A piece's keys and types in JSON, as they are written."""

_fault = cache(fault)


class Damaged(ValueError):
    """A checkpoint that is not what was written; the message names the file."""


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first, and nothing else that lies there."""
    return sorted(path for path in folder.glob("step_*") if STEP.fullmatch(path.name))


def batch_of(checkpoint: Path) -> int:
    """The global batches that a checkpoint's name stands for."""
    return int(checkpoint.name.removeprefix("step_"))


def step_name(batch: int) -> str:
    """The folder of the checkpoint after this many global batches."""
    return f"step_{batch:08d}"


def check_tiling(pieces: Iterable[Piece]) -> None:
    """Raise Damaged unless the pieces cover every tensor exactly once."""
    tensors: dict[str, list[Piece]] = {}
    for piece in pieces:
        tensors.setdefault(piece.key, []).append(piece)
    for key, parts in tensors.items():
        parts.sort(key=lambda piece: piece.start)
        ends = [0, *(piece.stop for piece in parts)]
        starts = [*(piece.start for piece in parts), parts[0].size]
        if ends != starts or len({(piece.shape, piece.dtype) for piece in parts}) != 1:
            sizes = f"{shown(parts[0].shape)}, do not fit: {shown(starts)} and {shown(ends)}"
            raise Damaged(f"the pieces of {key}, of shape {sizes}")


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a checkpoint's manifest, the last of its files."""
    body = asdict(manifest)
    write_json(folder / MANIFEST, {"format": FORMAT, "digest": _digest_of(body), "body": body})


def read_manifest(folder: Path) -> Manifest:
    """Read a checkpoint's manifest, and check that its files are there in full length.

    Raises:
        Damaged: it is not whole; the message names the file.
    """
    path = folder / MANIFEST
    try:
        value = read_json(path)
        body = value["body"]
        whole = (value["format"], type(value["format"])) == (FORMAT, int)
        whole = whole and value["digest"] == _digest_of(body)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{path} is damaged or missing ({type(error).__name__}: {error})") from None
    if not whole:
        raise Damaged(f"{path} is damaged: its digest or format is not what was written")
    try:
        manifest = _manifest_of(body)
    except ValueError as error:
        raise Damaged(f"{path} is damaged: {error}") from None
    if folder.name != (name := step_name(manifest.batch)):
        raise Damaged(f"{path} belongs to {name}, not to {folder.name}")
    for file in manifest.files:
        found = folder / file.name
        size = _size_of(found)
        if size != file.bytes:
            what = "missing" if size is None else f"{size} bytes long instead of {file.bytes}"
            raise Damaged(f"{found} is {what}")
    return manifest


def _manifest_of(body: Any) -> Manifest:
    """A manifest from its JSON, each value of its type and in its range, the pieces tiling.

    Raises:
        ValueError: names the key, the value given and what is allowed.
    """
    if not isinstance(body, dict) or not isinstance(pieces := body.get("pieces"), list):
        raise ValueError("body and body.pieces must be an object, and a list in it")
    body = {"batch": body.get("update")} | body  # the same before fp16 could skip any
    manifest = build(Manifest, body | {"pieces": []}, "body")
    _must(0 <= manifest.batch <= MOST_UPDATES, "batch", manifest.batch, f"0 to {MOST_UPDATES:,}")
    _must(0 <= manifest.update <= manifest.batch, "update", manifest.update, "0 to the batch")
    for key, value in manifest.scalars.items():
        if (bound := SCALARS.get(key)) is not None:
            fine = type(value) in (int, type(bound.low)) and bound.allows(value)
            _must(fine, f"scalars.{key}", value, f"a number, {bound}")
    _must(
        "optimizer_steps" in manifest.scalars, "scalars", manifest.scalars, "with optimizer_steps"
    )
    for i, file in enumerate(manifest.files):
        _must(_plain_name(file.name), f"files.{i}.name", file.name, "the name of a file beside it")
        _must(file.bytes >= 0, f"files.{i}.bytes", file.bytes, "0 or more")
    sizes = {file.name: file.bytes for file in manifest.files}
    _must(len(sizes) == len(manifest.files), "files", list(sizes), "files of different names")
    taken = Counter[str]()
    found: list[Piece] = []
    for i, value in enumerate(pieces):
        piece = _piece_of(value, sizes, i)
        taken[piece.file] += (piece.stop - piece.start) * BYTES[piece.dtype]
        found.append(piece)
    for name, number in taken.items():
        _must(number <= sizes[name], f"pieces of {name}", number, f"{sizes[name]} bytes at most")
    check_tiling(found)
    return replace(manifest, pieces=tuple(found))


def _piece_of(value: Any, sizes: dict[str, int], number: int) -> Piece:
    """A piece of one of these files from its JSON. A large run has a million of them, so whether
    all is well is asked first, and what is not is looked for only then."""
    if isinstance(value, dict) and [(k, type(v)) for k, v in value.items()] == PIECE:
        piece = Piece(**{**value, "shape": tuple(value["shape"])})
        well = piece.file in sizes and piece.dtype in BYTES and piece.name and piece.kind
        well = well and not _fault(piece.key)
        if well and {*map(type, piece.shape)} <= {int} and min(piece.shape, default=0) >= 0:
            if 0 <= piece.start <= piece.stop <= piece.size:
                return piece
    where = f"pieces.{number}"
    piece = build(Piece, value, f"body.{where}")
    for name in ("name", "kind"):
        text = getattr(piece, name)
        _must(not _fault(text), f"{where}.{name}", text, "a name")
    _must(piece.dtype in BYTES, f"{where}.dtype", piece.dtype, f"one of {', '.join(BYTES)}")
    _must(all(n >= 0 for n in piece.shape), f"{where}.shape", piece.shape, "sizes, 0 or more")
    _must(piece.file in sizes, f"{where}.file", piece.file, "one of the files")
    _must(0 <= piece.start, f"{where}.start", piece.start, "0 or more")
    allowed = f"{piece.start} to {shown(piece.size)}"
    _must(piece.start <= piece.stop <= piece.size, f"{where}.stop", piece.stop, allowed)
    return piece


def _plain_name(name: str) -> bool:
    return re.fullmatch(r"\w[\w.-]{0,254}", name, re.ASCII) is not None and name != MANIFEST


def _must(fine: bool, key: str, value: object, allowed: str) -> None:
    if not fine:
        raise ValueError(f"body.{key} is {shown(repr(value))}; it must be {allowed}")


def _size_of(path: Path) -> int | None:
    """Bytes of a plain file, asked once, as it may be removed at any moment; None where there is
    none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def damage(folder: Path) -> str:
    """What is wrong with a checkpoint's manifest, or its files' lengths; nothing of a whole one."""
    try:
        read_manifest(folder)
    except Damaged as error:
        return str(error)
    return ""


def verify(folder: Path, rank: int = 0, world: int = 1) -> Manifest:
    """Read a checkpoint's manifest, and compare the digests of a rank's share of the files.

    Raises:
        Damaged: a file is not what was written; the message names it.
    """
    manifest = read_manifest(folder)
    for file in manifest.files[rank::world]:
        verify_file(folder, file)
    return manifest


def verify_file(folder: Path, file: File) -> None:
    """Raise Damaged unless a file's content is what was written."""
    if digest_of_file(folder / file.name) != file.digest:
        raise Damaged(f"{folder / file.name} is damaged: its digest is not what was written")


def digest_of_file(path: Path) -> str:
    """xxh3_128 of a file's content, hex."""
    hasher = xxhash.xxh3_128()
    with path.open("rb") as stream:
        while block := stream.read(1 << 22):
            hasher.update(block)
    return hasher.hexdigest()


def _digest_of(body: Any) -> str:
    return xxhash.xxh3_128(json.dumps(body, sort_keys=True).encode()).hexdigest()
