"""What a checkpoint holds, and the checks that tell a whole one from a damaged one. No torch here.

step_00012000/manifest.json               what stands where, with a digest of itself
step_00012000/rank_00003.safetensors      a rank's slices, flattened, by "kind/name"
"""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

from bigvit.checkpoint.files import write_json

FORMAT = 1
MANIFEST = "manifest.json"
STEP = re.compile(r"step_(\d{8})")


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
        size = 1
        for n in self.shape:
            size *= n
        return size


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
            raise Damaged(f"the pieces of {key} {parts[0].shape} do not fit: {starts} and {ends}")


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
        value = json.loads(path.read_text())
        body = value["body"]
        whole = value["format"] == FORMAT and value["digest"] == _digest_of(body)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{path} is damaged or missing ({type(error).__name__}: {error})") from None
    if not whole:
        raise Damaged(f"{path} is damaged: its digest or format is not what was written")
    batch = body.get("batch", body["update"])  # the same before fp16 could skip any
    if folder.name != step_name(batch):
        raise Damaged(f"{path} belongs to {step_name(batch)}, not to {folder.name}")
    pieces = tuple(Piece(**{**piece, "shape": tuple(piece["shape"])}) for piece in body["pieces"])
    files = tuple(File(**file) for file in body["files"])
    later = {key: body[key] for key in ("data", "evaluation_due") if key in body}
    later["losses"] = tuple(body.get("losses", ()))
    counts = batch, body["update"]
    manifest = Manifest(*counts, body["recipe"], body["scalars"], files, pieces, **later)
    for file in files:
        found = folder / file.name
        size = found.stat().st_size if found.is_file() else None
        if size != file.bytes:
            what = "missing" if size is None else f"{size} bytes long instead of {file.bytes}"
            raise Damaged(f"{found} is {what}")
    check_tiling(pieces)
    return manifest


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
    hasher = xxhash.xxh3_128()
    with (folder / file.name).open("rb") as stream:
        while block := stream.read(1 << 22):
            hasher.update(block)
    if hasher.hexdigest() != file.digest:
        raise Damaged(f"{folder / file.name} is damaged: its digest is not what was written")


def _digest_of(body: Any) -> str:
    return xxhash.xxh3_128(json.dumps(body, sort_keys=True).encode()).hexdigest()
