"""What a checkpoint holds, and the checks that tell a whole one from a damaged one. No torch here.

step_00012000/manifest.json               what stands where, with a digest of itself
step_00012000/rank_00003.safetensors      a rank's slices, flattened, by "kind/name"
"""

import json
import re
import stat
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import xxhash

from bigvit.checkpoint.files import write_json
from bigvit.checkpoint.format1 import rows_of
from bigvit.checkpoint.rows import Row, check_rows, key_of, must
from bigvit.recipe.bounds import MOST_UPDATES, Bound, shown
from bigvit.recipe.store import build
from bigvit.recipe.words import read_json

FORMAT = 2
MANIFEST = "manifest.json"
STEP = re.compile(r"step_([0-9]{8})")


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
    data: dict[str, Any] | None = None  # what the images were; None: not written yet, in older ones
    evaluation_due: bool = False  # the run was stopped before the evaluation at this batch
    losses: tuple[float, ...] = ()  # of the updates before, as far as --loss-jump looks back
    teacher: str | None = None  # a digest of the teacher's weights, if there was one
    label_maps: str | None = None  # a digest of the label maps, if there were some
    # never to be trained on, by number, as far as was known: those up to `batch` were skipped
    skipped_batches: tuple[int, ...] = ()
    _: KW_ONLY
    files: tuple[File, ...]
    tensors: tuple[Row, ...]

    def by_key(self) -> dict[str, Row]:
        """The rows, by the names that their tensors have in the files."""
        return {key_of(kind, row.name): row for row in self.tensors for kind in row.kinds}


SCALARS = {
    "optimizer_steps": Bound(0, MOST_UPDATES),
    "loss_scale": Bound(0.0, 2.0**127, above=True),
    "good_updates": Bound(0, MOST_UPDATES),
}
"""What the scalars may be that engines read."""


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


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a checkpoint's manifest, the last of its files."""
    body = asdict(manifest)
    if not manifest.skipped_batches:
        del body["skipped_batches"]  # older ones read a checkpoint that needs none of it
    write_json(folder / MANIFEST, {"format": FORMAT, "digest": _digest_of(body), "body": body})


def read_manifest(folder: Path) -> Manifest:
    """Read a checkpoint's manifest, and check that its files are there in full length. Its file is
    read and judged once in a process, as long as it is the same.

    Raises:
        Damaged: it is not whole; the message names the file.
    """
    path = folder / MANIFEST
    try:
        now = path.stat()
        manifest = _read(path, now.st_ino, now.st_size, now.st_mtime_ns)
    except Damaged:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{path} is damaged or missing ({type(error).__name__}: {error})") from None
    if folder.name != (name := step_name(manifest.batch)):
        raise Damaged(f"{path} belongs to {name}, not to {folder.name}")
    for file in manifest.files:
        found = folder / file.name
        size = _size_of(found)
        if size != file.bytes:
            what = "missing" if size is None else f"{size} bytes long instead of {file.bytes}"
            raise Damaged(f"{found} is {what}")
    return manifest


@lru_cache(maxsize=32)
def _read(path: Path, *_same: int) -> Manifest:
    value = read_json(path)
    form, body = value["format"], value["body"]
    if type(form) is not int or form not in (1, FORMAT):
        raise Damaged(
            f"{path} is damaged, or of a newer bigvit: its format is {shown(repr(form))}, and this "
            f"one reads 1 and {FORMAT}"
        )
    if value["digest"] != _digest_of(body):
        raise Damaged(f"{path} is damaged: its digest is not what was written")
    try:
        return _manifest_of(body, form)
    except ValueError as error:
        raise Damaged(f"{path} is damaged: {error}") from None


def as_text(manifest: Manifest) -> str:
    """A manifest for other ranks."""
    return json.dumps(asdict(manifest))


def from_text(text: str) -> Manifest:
    """What `as_text` made."""
    return _manifest_of(json.loads(text), FORMAT)


def _manifest_of(body: Any, form: int) -> Manifest:
    """A manifest from its JSON, each value of its type and in its range, the tensors whole.

    Raises:
        ValueError: names the key, the value given and what is allowed.
    """
    if not isinstance(body, dict):
        raise ValueError("body must be an object")
    pieces: Any = None
    if form == 1:
        body = {"batch": body.get("update")} | body  # the same before fp16 could skip any
        pieces = body.pop("pieces", None)
        must("tensors" not in body, "tensors", "there", "absent in format 1")
        body["tensors"] = []
    manifest = build(Manifest, body, "body")
    must(0 <= manifest.batch <= MOST_UPDATES, "batch", manifest.batch, f"0 to {MOST_UPDATES:,}")
    must(0 <= manifest.update <= manifest.batch, "update", manifest.update, "0 to the batch")
    for name, value in manifest.scalars.items():
        if (bound := SCALARS.get(name)) is not None:
            fine = type(value) in (int, type(bound.low)) and bound.allows(value)
            must(fine, f"scalars.{name}", value, f"a number, {bound}")
    must("optimizer_steps" in manifest.scalars, "scalars", manifest.scalars, "with optimizer_steps")
    for i, file in enumerate(manifest.files):
        must(_plain_name(file.name), f"files.{i}.name", file.name, "the name of a file beside it")
        must(file.bytes >= 0, f"files.{i}.bytes", file.bytes, "0 or more")
    sizes = {file.name: file.bytes for file in manifest.files}
    must(len(sizes) == len(manifest.files), "files", list(sizes), "files of different names")
    if form == 1:
        manifest = replace(manifest, tensors=rows_of(pieces, list(sizes)))
    check_rows(manifest.tensors, sizes)
    return manifest


def _plain_name(name: str) -> bool:
    return re.fullmatch(r"\w[\w.-]{0,254}", name, re.ASCII) is not None and name != MANIFEST


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


def verify(folder: Path) -> Manifest:
    """Read a checkpoint's manifest, and compare the digests of its files.

    Raises:
        Damaged: a file is not what was written; the message names it.
    """
    manifest = read_manifest(folder)
    verify_share(folder, manifest)
    return manifest


def verify_share(folder: Path, manifest: Manifest, rank: int = 0, world: int = 1) -> None:
    """Compare the digests of a rank's share of the files.

    Raises:
        Damaged: a file is not what was written; the message names it.
    """
    for file in manifest.files[rank::world]:
        verify_file(folder, file)


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
