"""A part of a source's images, chosen by their names: some are held out for testing."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from PIL import Image

from bigvit.data.decode import Photo
from bigvit.data.sources.source import Source, Split


class PartSource:
    """Some of a source's images, in its order, with all of its classes."""

    def __init__(self, whole: Source, ids: NDArray[np.int64]) -> None:
        self.whole, self.ids = whole, ids
        self.classes: list[str] = whole.classes
        self.targets: NDArray[Any] = whole.targets[ids]

    def __len__(self) -> int:
        return len(self.ids)

    def name(self, index: int) -> str:
        return self.whole.name(int(self.ids[index]))

    def all_names(self) -> Iterator[bytes]:
        kept, first = np.zeros(len(self.whole), bool), 0
        kept[self.ids] = True
        for block in self.whole.all_names():
            names = block.split(b"\0")[:-1]
            chosen = kept[first : first + len(names)]
            first += len(names)
            yield b"".join(b"%b\0" % names[i] for i in np.flatnonzero(chosen))

    def contents(self) -> NDArray[Any]:
        return self.whole.contents()[self.ids]

    def open(self, index: int) -> Photo | Image.Image:
        return self.whole.open(int(self.ids[index]))

    def read(self, index: int) -> Image.Image:
        return self.whole.read(int(self.ids[index]))


def parted(whole: Source, held_out: float) -> dict[Split, PartSource]:
    """The images by split, where a share of all is held out for testing: those whose names' hashes
    are the lowest, whatever their order; at least one is left on either side.

    Raises:
        ValueError: there are fewer than two.
    """
    if len(whole) < 2:
        raise ValueError(f"{len(whole)} images cannot be parted; give two or more")
    names = b"".join(whole.all_names()).split(b"\0")[:-1]
    hashes = np.fromiter((xxhash.xxh3_64_intdigest(n) for n in names), np.uint64, len(names))
    count = min(max(round(held_out * len(whole)), 1), len(whole) - 1)
    order = np.argsort(hashes, kind="stable")
    each: dict[Split, NDArray[Any]] = {"train": order[count:], "test": order[:count]}
    return {name: PartSource(whole, np.sort(ids).astype(np.int64)) for name, ids in each.items()}
