"""Tar shards as webdataset's: KEY.jpg (or .png, ...), and KEY.cls, the number of its class, or
KEY.json that says it as "cls" or "label". A key ends at the first dot of a name.

They are listed once, by their headers; each image is then read by its place, in any order. What was
found is kept in a file of XDG_CACHE_HOME/bigvit, and taken from there until a shard's size, times,
or number on the disk change, as they do if it is replaced, its time of change kept or not.
"""

import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bigvit.data.decode import LARGEST, MACHINES, BadImage, Photo, Unread
from bigvit.data.sources.folders import THREADS, FileNames, shown
from bigvit.data.sources.kept import Arrays, kept, marks_of
from bigvit.data.sources.look import ENDINGS
from bigvit.data.sources.source import NAMES, Split, choose
from bigvit.data.sources.tar import BLOCK, Archive
from bigvit.recipe.words import read_json

SPLIT = re.compile(r"(?<![a-z])(train|validation|valid|val|test)(?![a-z])", re.IGNORECASE)
ENDS = re.compile(r"\.(tar|tgz|tar\.(gz|bz2|xz|zst))$")
KEPT = 1  # the form of what is kept
UNNAMED = 1_000_000  # classes, more than which have names
LONG = 20  # bytes of a class number; and 1 MiB of a .json
LONG_JSON = 1 << 20


class Listed(NamedTuple):
    """The images of a split. I images, S shards."""

    shards: list[bytes]  # paths from the root
    marks: NDArray[np.int64]  # (S, 2) size and time of change, in bytes and ns
    starts: NDArray[np.int64]  # (S,) the first image of each
    blocks: NDArray[np.uint32]  # (I,) where its content starts in the shard
    sizes: NDArray[np.int64]  # (I,) bytes
    targets: NDArray[np.int32]  # (I,)
    names: FileNames  # of I images, from the root: SHARD.tar/MEMBER


class ShardSource:
    """The images in the shards of a split."""

    def __init__(self, root: Path, listed: Listed, classes: list[str]) -> None:
        self.root, self.listed, self.classes = os.fsencode(root), listed, classes
        self.targets = listed.targets

    def __len__(self) -> int:
        return len(self.targets)

    def name(self, index: int) -> str:
        return shown(self.listed.names[index])

    def all_names(self) -> Iterator[bytes]:
        return self.listed.names.shown()

    def contents(self) -> NDArray[np.int64]:
        return self.listed.sizes

    def content(self, index: int) -> bytes:
        """An image file's bytes.

        Raises:
            BadImage: it is cut off, too large, or cannot be read.
            Unread: the shard cannot be opened, or is another one than was listed.
        """
        name, size = self.name(index), int(self.listed.sizes[index])
        if size > LARGEST:
            raise BadImage(name, f"{size:,} bytes, more than {LARGEST:,}")
        number = int(self.listed.starts.searchsorted(index, "right")) - 1
        shard = self.listed.shards[number]
        try:  # each time: of 1,024 shards an image is seldom in one of the last few
            file = io.FileIO(os.path.join(self.root, shard))
        except OSError as error:
            raise Unread(f"{shown(shard)}: {error.strerror}") from None
        with file:
            if _marks(file.fileno()) != tuple(self.listed.marks[number]):
                raise Unread(f"{shown(shard)} has changed since it was listed; start again")
            try:
                content = os.pread(file.fileno(), size, int(self.listed.blocks[index]) * BLOCK)
            except OSError as error:
                if error.errno in MACHINES:
                    raise Unread(f"{name}: {error.strerror}") from None
                raise BadImage(name, error.strerror or "cannot be read") from None
        if len(content) < size:
            raise BadImage(name, f"cut off: {len(content):,} of {size:,} bytes are there")
        return content

    def open(self, index: int) -> Photo:
        return Photo(self.content(index), self.name(index))

    def read(self, index: int) -> Image.Image:
        return self.open(index).image()


def find_shards(root: Path) -> dict[str, list[Path]]:
    """Shards by split: ROOT/SPLIT/*.tar, or *SPLIT*.tar in ROOT or ROOT/data; compressed ones too.
    Paths from the root."""
    found: dict[str, list[Path]] = {}
    for folder in ("", "data", *(name for names in NAMES.values() for name in names)):
        for path in sorted((root / folder).glob("[!.]*")):
            if ENDS.search(path.name):
                named = SPLIT.search(path.name)
                split = folder.removeprefix("data") or (named[1].lower() if named else "")
                found.setdefault(split, []).append(path.relative_to(root))
    return found


def open_shards(root: Path, found: dict[str, list[Path]], split: Split) -> ShardSource:
    """The images of a split, in the order of (shard, place in it). Classes without names are called
    by their numbers, as many as the training images have.

    Raises:
        ValueError: there are no shards of it, or one cannot be read, is damaged, or has an image
            without a class, a class without an image, or one that has no name.
    """
    shards = found[choose(found, split)]
    if packed := next((shard for shard in shards if shard.suffix != ".tar"), None):
        raise ValueError(
            f"{packed} is compressed, so that no image in it can be read by itself; unpack it to a "
            "plain .tar (JPEGs are hardly larger)"
        )
    listed = _listed(root, shards)
    if not len(listed.targets):
        raise ValueError(f"the shards of {split} have no images")
    if classes := _class_names(root):
        if (strange := listed.targets >= len(classes)).any():
            index = int(strange.argmax())
            raise ValueError(
                f"{shown(listed.names[index])} is of class {listed.targets[index]}, not of 0 to "
                f"{len(classes) - 1}"
            )
        return ShardSource(root, listed, classes)
    count = int(listed.targets.max()) + 1
    if split == "test" and (training := [found[name] for name in NAMES["train"] if name in found]):
        count = max(count, int(_listed(root, training[0]).targets.max(initial=0)) + 1)
    if count > UNNAMED:
        raise ValueError(f"of {count:,} classes the names are needed, in {root}/classnames.txt")
    return ShardSource(root, listed, [str(number) for number in range(count)])


def _class_names(root: Path) -> list[str]:
    """Names by class number: a line each, or a list; none where there is no such file."""
    if (path := root / "classnames.txt").is_file():
        names = path.read_text(encoding="utf-8").rstrip().split("\n")
        said: Any = [name.strip() for name in names]
    elif (path := root / "classes.json").is_file():
        said = _json(path)
    elif (path := root / "_info.json").is_file():
        said = _json(path)
        said = (said.get("classes") or said.get("class_names")) if isinstance(said, dict) else None
        if said is None:  # timm's say other things
            return []
    else:
        return []
    if not isinstance(said, list) or not all(isinstance(name, str) and name for name in said):
        raise ValueError(f"{path.name} is not a list of the classes' names, in their order")
    return said


def _json(path: Path) -> Any:
    try:
        return read_json(path)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def _marks(descriptor: int) -> tuple[int, int]:
    """What changes with a file that is read: not its number on the disk, which some file systems
    make up anew each time."""
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns


def _listed(root: Path, shards: Sequence[Path]) -> Listed:
    """The images in shards: as kept, or found now, and kept where that is possible."""
    for shard in shards:
        if not (root / shard).is_file():
            raise ValueError(f"{shard} is not a file")
    paths = [os.fsencode(shard) for shard in shards]
    marks = marks_of([os.path.join(os.fsencode(root), path) for path in paths])
    found = kept(f"shards{KEPT}", os.fsencode(root), paths, marks, lambda: _found(root, paths))
    return Listed(paths, names=FileNames.of(found), **{name: found[name] for name in ARRAYS})


ARRAYS = ("marks", "starts", "blocks", "sizes", "targets")


def _found(root: Path, paths: list[bytes]) -> Arrays:
    """The images in shards, whose headers are read."""
    marks: list[tuple[int, int]] = []
    parts: list[NDArray[np.int64]] = []

    def look(path: bytes) -> tuple[tuple[int, int], list[bytes], NDArray[np.int64]]:
        try:
            with open(os.path.join(os.fsencode(root), path), "rb", buffering=0) as file:
                return _marks(file.fileno()), *_images(Archive(file.fileno()))
        except OSError as error:
            raise ValueError(f"{shown(path)} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ValueError(f"{shown(path)}: {error}") from None

    def names() -> Iterator[bytes]:
        with ThreadPoolExecutor(THREADS) as pool:
            try:
                for path, (mark, names, places) in zip(paths, pool.map(look, paths), strict=True):
                    marks.append(mark)
                    parts.append(places)
                    yield from (path + b"/" + name for name in names)
            finally:
                pool.shutdown(cancel_futures=True)

    text = FileNames(names())
    offsets, sizes, targets = np.concatenate(parts).T
    return text.arrays() | {
        "marks": np.array(marks, np.int64),
        "starts": np.cumsum([0, *map(len, parts[:-1])]),
        "blocks": (offsets // BLOCK).astype(np.uint32),
        "sizes": sizes.copy(),
        "targets": targets.astype(np.int32),
    }


def _images(archive: Archive) -> tuple[list[bytes], NDArray[np.int64]]:
    """Of a shard's images, in its order, the names, and offset, size and class (images, 3).

    Raises:
        ValueError: the shard is damaged, or an image and its class are not together in it.
    """
    images: dict[bytes, tuple[bytes, int, int]] = {}
    numbers: dict[bytes, int] = {}
    stated: dict[bytes, bytes] = {}  # names of the .cls, by key
    others: dict[bytes, bytes] = {}  # what may have been meant for an image, or a class
    for name, offset, size, link in archive.members():
        name = name.removeprefix(b"./")
        folder, slash, base = name.rpartition(b"/")
        stem, dot, ending = base.partition(b".")
        if not stem:  # a hidden file, as macOS leaves beside others
            continue
        key, ending = folder + slash + stem, dot + ending.lower()
        if ending in ENDINGS and not link:
            if key in images:
                raise ValueError(
                    f"{shown(images[key][0])} and {shown(name)} are two images of one key, which "
                    "ends at the first dot"
                )
            images[key] = name, offset, size
        elif ending == b".cls" and not link:
            text = archive.read(offset, size) if size <= LONG else b""
            if len(text) < size or not text.strip().isdigit() or int(text) >= 1 << 31:
                raise ValueError(f"{shown(name)}, at byte {offset:,}, holds no class number")
            if key in stated:
                raise ValueError(f"{shown(name)} is there twice")
            numbers[key], stated[key] = int(text), name
        elif ending == b".json" and not link:
            if key not in numbers and (number := _said(archive, offset, size)) is not None:
                numbers[key] = number
        elif ending.endswith((*ENDINGS, b".cls")):
            others[key] = name
    if without := [name for key, (name, _, _) in images.items() if key not in numbers]:
        if (end := max(offset + size for _, offset, size in images.values())) > archive.size:
            raise ValueError(
                f"it is cut off: {shown(without[-1])} would end at byte {end:,}, and the file has "
                f"{archive.size:,}; get it again"
            )
        raise ValueError(
            f"{len(without):,} of {len(images):,} images have no class ({shown(without[0])}, ...): "
            "KEY.cls, or KEY.json with cls or label; a tar of class folders is to be unpacked"
        )
    if alone := [name for key, name in (stated | others).items() if key not in images]:
        raise ValueError(
            f"{len(alone):,} files are without the image of their key ({shown(alone[0])}, ...): "
            "keys end at the first dot, and links are not followed (tar -h --hard-dereference)"
        )
    places = [(offset, size, numbers[key]) for key, (_, offset, size) in images.items()]
    return [name for name, _, _ in images.values()], np.array(places, np.int64).reshape(-1, 3)


def _said(archive: Archive, offset: int, size: int) -> int | None:
    """The class that a .json says."""
    try:
        said: Any = json.loads(archive.read(offset, size)) if size <= LONG_JSON else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    number = said.get("cls", said.get("label"))
    fine = isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 31
    return number if fine else None
