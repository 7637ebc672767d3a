"""Class folders, as ImageNet is laid out: ROOT/train/CLASS/IMAGE and ROOT/val/CLASS/IMAGE; a test
set alone, as ImageNet-V2, may also be ROOT/CLASS/IMAGE. Links are followed, wherever they lead: who
laid out the folders made them."""

import os
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bigvit.data.decode import Photo, content_of
from bigvit.data.sources import look
from bigvit.data.sources.kept import Arrays, kept, marks_of
from bigvit.data.sources.look import images
from bigvit.data.sources.source import NAMES, Split

ASCII = bytes([0, *range(32, 127)])
CHUNK = 1 << 15  # files: more are looked at by processes, so many by each
FOLDERS = 64  # that each lists
THREADS = 16  # that wait for them; a network's file system answers one after the other


class FileNames:
    """Names by number, deflated by the block: 14 million cost megabytes, in a few objects, so that
    forked workers share them (a list would be copied as its reference counts change)."""

    BLOCK = 128

    def __init__(self, names: Iterable[bytes]) -> None:
        content, starts, each = bytearray(), [0], iter(names)
        while block := list(islice(each, self.BLOCK)):
            content += zlib.compress(b"\0".join(block), 1)
            starts.append(len(content))
        self._set(bytes(content), np.array(starts, np.int64))

    @classmethod
    def of(cls, arrays: Arrays) -> "FileNames":
        """The names that another object's `arrays` hold."""
        (names := cls.__new__(cls))._set(arrays["text"].tobytes(), arrays["within"])
        return names

    def arrays(self) -> Arrays:
        """All that there is of them."""
        return {"text": np.frombuffer(self.content, np.uint8), "within": self.starts}

    def _set(self, content: bytes, starts: NDArray[np.int64]) -> None:
        self.content, self.starts = content, starts
        self._last: tuple[int, list[bytes]] = (-1, [])  # block: names are often asked in order

    def __getitem__(self, index: int) -> bytes:
        block, within = divmod(index, self.BLOCK)
        if self._last[0] != block:
            self._last = (block, self._block(block))
        return self._last[1][within]

    def joined(self, start: int, stop: int) -> bytes:
        """The names of numbers from `start`, a multiple of BLOCK, to before `stop`, another or the
        end, with zero bytes between them."""
        blocks = range(start // self.BLOCK, -(-stop // self.BLOCK))
        return b"\0".join(map(self._joined, blocks))

    def shown(self) -> Iterator[bytes]:
        """All names as they are shown, each with a zero byte behind it, by the block."""
        for block in range(len(self.starts) - 1):
            text = self._joined(block) + b"\0"
            yield text if is_plain(text) else b"".join(map(_line, text[:-1].split(b"\0")))

    def _block(self, block: int) -> list[bytes]:
        return self._joined(block).split(b"\0")

    def _joined(self, block: int) -> bytes:
        start, stop = self.starts[block], self.starts[block + 1]
        return zlib.decompress(self.content[start:stop])

    @property
    def nbytes(self) -> int:
        return len(self.content) + self.starts.nbytes


class FileSource:
    """Image files below a folder."""

    def __init__(
        self, root: Path, names: FileNames, targets: NDArray[np.int32], classes: list[str]
    ) -> None:
        """
        Args:
            names: paths from the root.
        """
        self.root, self.names = os.fsencode(root), names
        self.targets, self.classes = targets, classes

    def __len__(self) -> int:
        return len(self.targets)

    def name(self, index: int) -> str:
        return shown(self.names[index])

    def all_names(self) -> Iterator[bytes]:
        return self.names.shown()

    def contents(self) -> NDArray[np.int64]:
        count, block = len(self), FileNames.BLOCK
        each = max(CHUNK, -(-count // (THREADS * block)) * block)

        def sizes(start: int) -> NDArray[np.int64]:
            paths = self.names.joined(start, min(count, start + each))
            return np.frombuffer(_look(self.root, "sizes", paths, count), np.int64)

        with ThreadPoolExecutor(THREADS) as pool:
            return np.concatenate(list(pool.map(sizes, range(0, count, each))))

    def open(self, index: int) -> Photo:
        path = self.names[index]
        return Photo(content_of(os.path.join(self.root, path), shown(path)), shown(path))

    def read(self, index: int) -> Image.Image:
        return self.open(index).image()


def find_folders(root: Path) -> bool:
    """Whether a split's folder is there."""
    return any((root / name).is_dir() for names in NAMES.values() for name in names)


def find_classes(root: Path) -> bool:
    """Whether the root itself holds class folders of images."""
    within = os.fsencode(root)
    return any(images(os.path.join(within, name)) for name in _class_folders(within))


def open_folders(root: Path, split: Split) -> FileSource:
    """The images of a split.

    Raises:
        ValueError: the split's folder is missing, without classes, or has a class without images.
    """
    for name in NAMES[split]:
        if (root / name).is_dir():
            return open_classes(root, name)
    wanted = " or ".join(f"{name}/" for name in NAMES[split])
    raise ValueError(f"there is no {wanted} of class folders in it")


def open_classes(root: Path, folder: str) -> FileSource:
    """The images below the class folders of ROOT/folder, or of ROOT where it is "", in the order of
    (class, file name).

    Raises:
        ValueError: there are no class folders, or one has no images.
    """
    start = os.fsencode(folder)
    within = os.path.join(os.fsencode(root), start)
    classes = _class_folders(within)
    if not classes:
        raise ValueError(f"{folder}/ has no class folders")
    names, counts = _listed(os.fsencode(root), [os.path.join(start, name) for name in classes])
    if empty := [name for name, count in zip(classes, counts, strict=True) if not count]:
        raise ValueError(
            f"{len(empty)} of {len(classes)} class folders in {folder or '.'}/ have no images "
            f"({shown(empty[0])}, ...); remove or fill them"
        )
    targets = np.repeat(np.arange(len(classes), dtype=np.int32), counts)
    return FileSource(root, names, targets, [shown(name) for name in classes])


def _listed(root: bytes, folders: list[bytes]) -> tuple[FileNames, NDArray[np.int64]]:
    """The images in folders, and how many each has (folders,); many are kept."""
    names: list[list[bytes]] = []
    count = 0
    for folder in folders:
        names.append([os.path.join(folder, b"") + n for n in images(os.path.join(root, folder))])
        if (count := count + len(names[-1])) > CHUNK:
            break
    else:
        return FileNames(chain(*names)), np.array([len(here) for here in names])

    def looked(start: int) -> bytes:
        return _look(root, "images", b"\0".join(folders[start : start + each]), count)

    each = max(FOLDERS, len(folders) // (4 * THREADS))

    def find() -> Arrays:
        counts: list[int] = []

        def paths() -> Iterator[bytes]:
            with ThreadPoolExecutor(THREADS) as pool:
                for found in pool.map(looked, range(0, len(folders), each)):
                    here = min(each, len(folders) - len(counts))
                    counts.extend(np.frombuffer(found, np.int64, here).tolist())
                    yield from found[8 * here :].split(b"\0") if len(found) > 8 * here else ()

        return FileNames(paths()).arrays() | {"counts": np.array(counts)}

    with ThreadPoolExecutor(THREADS) as pool:
        marks = marks_of([os.path.join(root, folder) for folder in folders], pool.map)
    place = os.path.dirname(os.path.join(root, folders[0]))
    found = kept("folders", place, folders, marks, find)
    return FileNames.of(found), found["counts"]


def _look(root: bytes, what: str, paths: bytes, count: int) -> bytes:
    """What `look.answer` says of paths from the root; of many a process of its own is asked."""
    if count > CHUNK:
        command = [sys.executable, "-ISs", look.__file__, what]
        with suppress(OSError, subprocess.CalledProcessError):
            asked = subprocess.run(command, input=paths, capture_output=True, cwd=root, check=True)
            return asked.stdout
    return look.answer(what, paths.split(b"\0"), os.path.join(root, b""))


def _class_folders(within: bytes) -> list[bytes]:
    """Sorted as torchvision does; but names that are all numbers, as ImageNet-V2's, by their
    values. Hidden folders are no classes."""
    with os.scandir(within) as entries:
        names = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith(b"."))
    return sorted(names, key=int) if all(name.isdigit() for name in names) else names


def shown(name: bytes) -> str:
    """A name that can be printed on one line, whatever its bytes."""
    text = name.decode(errors="backslashreplace")
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def is_below(name: bytes) -> bool:
    """Whether a name that a list has leads down from where it starts."""
    return not name.startswith(b"/") and b".." not in name.split(b"/") and b"\0" not in name


def is_plain(text: bytes) -> bool:
    """Whether names with zero bytes between them are all shown as they are."""
    if not text.translate(None, ASCII):  # ten times as fast
        return True
    try:
        return text.decode().replace("\0", "").isprintable()
    except UnicodeDecodeError:
        return False


def _line(name: bytes) -> bytes:
    return shown(name).encode() + b"\0"
