"""Class folders, as ImageNet is laid out: ROOT/train/CLASS/IMAGE and ROOT/val/CLASS/IMAGE; a test
set alone, as ImageNet-V2, may also be ROOT/CLASS/IMAGE."""

import os
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bigvit.data.decode import BadImage, decode
from bigvit.data.sources.source import NAMES, Split

ENDINGS = (b".jpg", b".jpeg", b".png", b".ppm", b".bmp", b".pgm", b".tif", b".tiff", b".webp")
"""torchvision's; upper case counts too."""


class FileNames:
    """Names by number, deflated by the block: 14 million cost megabytes, in a few objects, so that
    forked workers share them (a list would be copied as its reference counts change)."""

    BLOCK = 128

    def __init__(self, names: Iterable[bytes]) -> None:
        content, starts, each = bytearray(), [0], iter(names)
        while block := list(islice(each, self.BLOCK)):
            content += zlib.compress(b"\0".join(block), 1)
            starts.append(len(content))
        self.content, self.starts = bytes(content), np.array(starts, np.int64)

    def __getitem__(self, index: int) -> bytes:
        block, within = divmod(index, self.BLOCK)
        start, stop = self.starts[block], self.starts[block + 1]
        return zlib.decompress(self.content[start:stop]).split(b"\0")[within]

    @property
    def nbytes(self) -> int:
        return len(self.content) + self.starts.nbytes


class FolderSource:
    """Images below class folders, in the order of (class, file name)."""

    def __init__(self, root: Path, folder: str) -> None:
        """List ROOT/folder, or ROOT where it is "".

        Raises:
            ValueError: there are no class folders, or one has no images.
        """
        self.root, self.folder = os.fsencode(root), folder
        within = os.path.join(self.root, os.fsencode(folder))
        self.folders = _class_folders(within)
        if not self.folders:
            raise ValueError(f"--data-root {root}: {folder}/ has no class folders")
        counts: list[int] = []
        self.names = FileNames(_listed(within, self.folders, counts))
        if empty := [i for i, count in enumerate(counts) if not count]:
            first = shown(self.folders[empty[0]])
            raise ValueError(
                f"--data-root {root}: {len(empty)} of {len(counts)} class folders in "
                f"{folder or '.'}/ have no images ({first}, ...); remove or fill them"
            )
        self.targets: NDArray[np.int32] = np.repeat(
            np.arange(len(counts), dtype=np.int32), np.array(counts)
        )
        self.classes = [shown(name) for name in self.folders]

    def __len__(self) -> int:
        return len(self.targets)

    def name(self, index: int) -> str:
        return shown(self._path(index))

    def target(self, index: int) -> int:
        return int(self.targets[index])

    def read(self, index: int) -> Image.Image:
        return read_file(self.root, self._path(index))

    def _path(self, index: int) -> bytes:
        """Relative to the root."""
        folder = self.folders[self.targets[index]]
        return os.path.join(os.fsencode(self.folder), folder, self.names[index])


def read_file(root: bytes, path: bytes) -> Image.Image:
    """The image at a path below a root.

    Raises:
        BadImage: it cannot be read.
    """
    try:
        with open(os.path.join(root, path), "rb") as file:
            content = file.read()
    except OSError as error:
        raise BadImage(shown(path), error.strerror or "cannot be read") from None
    return decode(content, shown(path))


def find_folders(root: Path) -> bool:
    """Whether a split's folder is there."""
    return any((root / name).is_dir() for names in NAMES.values() for name in names)


def find_classes(root: Path) -> bool:
    """Whether the root itself holds class folders of images."""
    within = os.fsencode(root)
    return any(any(_listed(within, [name], [])) for name in _class_folders(within))


def open_folders(root: Path, split: Split) -> FolderSource:
    """The images of a split.

    Raises:
        ValueError: the split's folder is missing, without classes, or has a class without images.
    """
    for name in NAMES[split]:
        if (root / name).is_dir():
            return FolderSource(root, name)
    wanted = " or ".join(f"{name}/" for name in NAMES[split])
    raise ValueError(f"--data-root {root}: there is no {wanted} of class folders in it")


def _class_folders(within: bytes) -> list[bytes]:
    """Sorted as torchvision does; but names that are all numbers, as ImageNet-V2's, by their
    values. Hidden folders are no classes."""
    with os.scandir(within) as entries:
        names = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith(b"."))
    return sorted(names, key=int) if all(name.isdigit() for name in names) else names


def _listed(within: bytes, folders: list[bytes], counts: list[int]) -> Iterator[bytes]:
    """File names of one class after the other, which are counted."""
    for folder in folders:
        with os.scandir(os.path.join(within, folder)) as entries:
            # a link that leads nowhere is listed, and found bad when it is read
            names = [e.name for e in entries if e.name.lower().endswith(ENDINGS) and not e.is_dir()]
        counts.append(len(names))
        yield from sorted(names)


def shown(name: bytes) -> str:
    """A name that can be printed on one line, whatever its bytes."""
    text = name.decode(errors="backslashreplace")
    return text if text.isprintable() else text.encode("unicode_escape").decode()
