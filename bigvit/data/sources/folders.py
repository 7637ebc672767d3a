"""Class folders, as ImageNet is laid out: ROOT/train/CLASS/IMAGE and ROOT/val/CLASS/IMAGE; a test
set alone, as ImageNet-V2, may also be ROOT/CLASS/IMAGE. Links are followed, wherever they lead: who
laid out the folders made them."""

import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bigvit.data.decode import content_of, decode
from bigvit.data.sources.source import NAMES, Split

ENDINGS = (b".jpg", b".jpeg", b".png", b".ppm", b".bmp", b".pgm", b".tif", b".tiff", b".webp")
"""torchvision's; upper case counts too."""
ASCII = bytes([0, *range(32, 127)])
CHUNK, THREADS = 1 << 14, 16  # files; a network's file system answers one after the other


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
    def of(cls, content: bytes, starts: NDArray[np.int64]) -> "FileNames":
        """The names that another object's `content` and `starts` hold."""
        (names := cls.__new__(cls))._set(content, starts)
        return names

    def _set(self, content: bytes, starts: NDArray[np.int64]) -> None:
        self.content, self.starts = content, starts
        self._last: tuple[int, list[bytes]] = (-1, [])  # block: names are often asked in order

    def __getitem__(self, index: int) -> bytes:
        block, within = divmod(index, self.BLOCK)
        if self._last[0] != block:
            self._last = (block, self._block(block))
        return self._last[1][within]

    def between(self, start: int, stop: int) -> Iterator[bytes]:
        """The names of numbers from `start`, a multiple of BLOCK, to before `stop`."""
        blocks = range(start // self.BLOCK, -(-stop // self.BLOCK))
        return islice((name for block in blocks for name in self._block(block)), stop - start)

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
        count = len(self)
        sizes = np.full(count, -1, np.int64)

        def look(start: int) -> None:
            paths = self.names.between(start, min(count, start + CHUNK))
            for index, path in enumerate(paths, start):
                try:
                    status = os.stat(path, dir_fd=folder)
                except (OSError, ValueError):
                    continue
                if stat.S_ISREG(status.st_mode):
                    sizes[index] = status.st_size

        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(look, range(0, count, CHUNK)))
        finally:
            os.close(folder)
        return sizes

    def read(self, index: int) -> Image.Image:
        path = self.names[index]
        return decode(content_of(os.path.join(self.root, path), shown(path)), shown(path))


def find_folders(root: Path) -> bool:
    """Whether a split's folder is there."""
    return any((root / name).is_dir() for names in NAMES.values() for name in names)


def find_classes(root: Path) -> bool:
    """Whether the root itself holds class folders of images."""
    within = os.fsencode(root)
    return any(_images(os.path.join(within, name)) for name in _class_folders(within))


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
    counts: list[int] = []

    def paths() -> Iterator[bytes]:
        for name in classes:
            images, before = _images(os.path.join(within, name)), os.path.join(start, name, b"")
            counts.append(len(images))
            yield from (before + image for image in images)

    names = FileNames(paths())
    if empty := [name for name, count in zip(classes, counts, strict=True) if not count]:
        raise ValueError(
            f"{len(empty)} of {len(classes)} class folders in {folder or '.'}/ have no images "
            f"({shown(empty[0])}, ...); remove or fill them"
        )
    targets = np.repeat(np.arange(len(classes), dtype=np.int32), counts)
    return FileSource(root, names, targets, [shown(name) for name in classes])


def _class_folders(within: bytes) -> list[bytes]:
    """Sorted as torchvision does; but names that are all numbers, as ImageNet-V2's, by their
    values. Hidden folders are no classes."""
    with os.scandir(within) as entries:
        names = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith(b"."))
    return sorted(names, key=int) if all(name.isdigit() for name in names) else names


def _images(folder: bytes) -> list[bytes]:
    """File names, sorted; but for what macOS leaves beside a file, ._NAME, with its name's end."""
    with os.scandir(folder) as entries:
        # a link that leads nowhere is listed, and found bad when it is read
        found = [e.name for e in entries if e.name.lower().endswith(ENDINGS) and _no_folder(e)]
    return sorted(name for name in found if not name.startswith(b"._"))


def _no_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return not entry.is_dir()
    except OSError:  # a link in a circle
        return True


def shown(name: bytes) -> str:
    """A name that can be printed on one line, whatever its bytes."""
    text = name.decode(errors="backslashreplace")
    return text if text.isprintable() else text.encode("unicode_escape").decode()


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
