"""Data sets that are arrays of pixels in few files: CIFAR-10 and -100 in their binary form, SVHN's
cropped digits, and IDX files (MNIST, Fashion-MNIST). No pickle is read."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bigvit.data.sources.source import Split

CIFAR10, CIFAR100 = "cifar-10-batches-bin", "cifar-100-binary"
IDX = {"train": "train", "test": "t10k"}


class ArraySource:
    """Images held in memory, which the workers share."""

    def __init__(
        self,
        split: Split,
        images: NDArray[np.uint8],
        targets: NDArray[Any],
        classes: list[str],
        mode: str = "RGB",
    ) -> None:
        """
        Args:
            images: (images, H, W) gray or (images, H, W, 3).
            mode: of what is read, as PIL names it.
        """
        self.split, self.images, self.mode = split, images, mode
        self.targets, self.classes = targets, classes

    def __len__(self) -> int:
        return len(self.targets)

    def name(self, index: int) -> str:
        return f"{self.split}[{index}]"

    def all_names(self) -> Iterator[bytes]:
        return (f"{self.name(index)}\0".encode() for index in range(len(self)))

    def contents(self) -> NDArray[np.uint8]:
        return self.images

    def open(self, index: int) -> Image.Image:
        return self.read(index)

    def read(self, index: int) -> Image.Image:
        return Image.fromarray(self.images[index]).convert(self.mode)


def find_cifar(root: Path) -> Path | None:
    """The folder of CIFAR's binary files, if it is there."""
    for folder in (root, root / CIFAR10, root / CIFAR100):
        if (folder / "batches.meta.txt").is_file() or (folder / "fine_label_names.txt").is_file():
            return folder
    return None


def open_cifar(folder: Path, split: Split) -> ArraySource:
    """CIFAR-10, or CIFAR-100 with its fine classes.

    Raises:
        ValueError: a file is missing or not of whole records, or a class has no name.
    """
    fine = (folder / "fine_label_names.txt").is_file()
    names = (folder / ("fine_label_names.txt" if fine else "batches.meta.txt")).read_text().split()
    if fine:
        files = [folder / f"{split}.bin"]
    elif split == "train":
        files = [folder / f"data_batch_{i}.bin" for i in range(1, 6)]
    else:
        files = [folder / "test_batch.bin"]
    labels = 2 if fine else 1  # CIFAR-100: the coarse class, then the fine one
    pixels = 3 * 32 * 32
    parts: list[NDArray[np.uint8]] = []
    for file in files:
        if not file.is_file():
            raise ValueError(f"{file} is missing")
        content = np.fromfile(file, np.uint8)
        if len(content) == 0 or len(content) % (labels + pixels):
            raise ValueError(
                f"{file} has {len(content):,} bytes, not a multiple of {labels + pixels:,}; get it "
                "again"
            )
        parts.append(content.reshape(-1, labels + pixels))
    records = np.concatenate(parts)
    targets = records[:, labels - 1].copy()
    if (strange := targets >= len(names)).any():
        row = int(strange.argmax())
        raise ValueError(
            f"record {row:,} of {split} in {folder}, counted from 0, is of class {targets[row]}, "
            f"not of 0 to {len(names) - 1}"
        )
    images = records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return ArraySource(split, np.ascontiguousarray(images), targets, names)


def find_svhn(root: Path) -> bool:
    """Whether SVHN's cropped digits of a split are there."""
    return any((root / f"{split}_32x32.mat").is_file() for split in ("train", "test"))


def open_svhn(root: Path, split: Split) -> ArraySource:
    """SVHN's cropped digits (73,257 to train, without the extra ones), MATLAB's file as it is given
    out; its class 10 is the digit 0.

    Raises:
        ValueError: the file is missing or damaged.
    """
    from scipy.io import loadmat

    file = root / f"{split}_32x32.mat"
    if not file.is_file():
        raise ValueError(f"{file} is missing")
    try:
        content = loadmat(file, variable_names=("X", "y"))
        images, numbers = content["X"].transpose(3, 0, 1, 2), content["y"].reshape(-1)
    except Exception as error:  # of a damaged file scipy raises whatever it meets
        raise ValueError(
            f"{file} is damaged ({type(error).__name__}: {error}); get it again"
        ) from None
    fine = images.dtype == np.uint8 and images.shape[1:] == (32, 32, 3)
    if not fine or len(images) != len(numbers) or not len(images):
        raise ValueError(
            f"{file} has images {images.shape} of {images.dtype} and {len(numbers):,} classes, not "
            "(N, 32, 32, 3) of uint8 and N; get it again"
        )
    if (strange := (numbers < 1) | (numbers > 10)).any():
        row = int(strange.argmax())
        raise ValueError(
            f"image {row:,} of {file}, counted from 0, is of class {numbers[row]}, not of 1 to 10"
        )
    targets = (numbers % 10).astype(np.int32)
    return ArraySource(split, np.ascontiguousarray(images), targets, [str(n) for n in range(10)])


def find_idx(root: Path) -> bool:
    """Whether IDX files of a training or test split are there."""
    return any(_idx_file(root, name, "images-idx3") for name in IDX.values())


def open_idx(root: Path, split: Split) -> ArraySource:
    """Images and labels of IDX files, plain or compressed; classes are called by their numbers.

    Raises:
        ValueError: a file is missing or not what its name says.
    """
    images = _read_idx(root, IDX[split], "images-idx3", 3)
    targets = _read_idx(root, IDX[split], "labels-idx1", 1)
    if len(images) != len(targets) or len(targets) == 0:
        raise ValueError(
            f"{len(images):,} images and {len(targets):,} labels of {IDX[split]} do not belong "
            "together"
        )
    return ArraySource(split, images, targets, [str(n) for n in range(int(targets.max()) + 1)])


def _idx_file(root: Path, split: str, kind: str) -> Path | None:
    names = (f"{split}-{kind}-ubyte", f"{split}-{kind}-ubyte.gz")
    return next((root / name for name in names if (root / name).is_file()), None)


def _read_idx(root: Path, split: str, kind: str, dimensions: int) -> NDArray[np.uint8]:
    if (file := _idx_file(root, split, kind)) is None:
        raise ValueError(f"{split}-{kind}-ubyte[.gz] is missing")
    try:
        content = file.read_bytes()
        if file.suffix == ".gz":
            content = gzip.decompress(content)
        header = np.frombuffer(content, ">i4", 1 + dimensions)
        shape = tuple(int(n) for n in header[1:])
        if header[0] != 0x800 + dimensions:  # 8: unsigned bytes
            raise ValueError("its first four bytes are not an IDX file's")
        return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{file} is not a whole IDX file: {error}") from None
