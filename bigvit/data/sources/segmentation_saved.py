"""Images with a class for each pixel in a folder that `datasets`' save_to_disk wrote: a column of
images, and one of maps (scene_parse_150's `image` and `annotation`)."""

import os
from collections.abc import Iterator, Sequence
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bigvit.data.decode import BadImage, Photo, Unread
from bigvit.data.sources.folders import shown
from bigvit.data.sources.hugging_face import saved_rows
from bigvit.data.sources.segmentation import Zero, read_map
from bigvit.data.sources.source import Split
from bigvit.recipe import Segmentation

IMAGES = ("image", "img")
MAPS = ("annotation", "label", "labels", "mask", "annotations", "segmentation")


class SavedScenes:
    """The rows of a `datasets.Dataset` with two columns of images."""

    def __init__(
        self, rows: Any, split: Split, data: Segmentation, mapped: Sequence[mmap] = ()
    ) -> None:
        """
        Args:
            mapped: the files that hold the rows.

        Raises:
            ValueError: the columns are not such.
        """
        from datasets import Image as Kind

        of = [name for name, kind in rows.features.items() if isinstance(kind, Kind)]
        image = next((name for name in IMAGES if name in of), None)
        label = next((name for name in MAPS if name in of), None)
        if image is None or label is None:
            found = ", ".join(f"{n} ({type(k).__name__})" for n, k in rows.features.items())
            raise ValueError(
                f"two columns of images are needed, one called {' or '.join(IMAGES)} and one of "
                f"maps called {', '.join(MAPS)}, not {found}"
            )
        self.split, self.image, self.label, self.mapped = split, image, label, mapped
        columns = rows.select_columns([image, label])
        for name in (image, label):
            columns = columns.cast_column(name, Kind(decode=False))
        self.rows = columns
        self.targets: NDArray[Any] = np.zeros(len(rows), np.int32)
        self.count = data.classes
        self.zero: Zero = data.zero
        self.classes = [str(number) for number in range(data.classes)]

    def __len__(self) -> int:
        return len(self.targets)

    def name(self, index: int) -> str:
        path = self._column(self.image, "path")[index].as_py()
        return f"{self.split}[{index}]" + (f" {shown(os.fsencode(path))}" if path else "")

    def all_names(self) -> Iterator[bytes]:
        return (f"{self.name(index)}\0".encode() for index in range(len(self)))

    def contents(self) -> NDArray[np.int64]:
        from pyarrow import compute

        sizes = [
            compute.call_function("binary_length", [self._column(name, "bytes")]).fill_null(-1)
            for name in (self.image, self.label)
        ]
        return np.stack([each.to_numpy().astype(np.int64) for each in sizes], axis=1)

    def open(self, index: int) -> Photo:
        return Photo(self._content(index, self.image), self.name(index))

    def read(self, index: int) -> Image.Image:
        return self.open(index).image()

    def labels(self, index: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        name = f"{self.split}[{index}] {self.label}"
        return read_map(self._content(index, self.label), name, size, self.count, self.zero)

    def _column(self, name: str, part: str) -> Any:
        """A part of the cells of a column, none of them read."""
        cells = self.rows.data.column(name)
        return cells.flatten()[cells.type.get_field_index(part)]

    def _content(self, index: int, column: str) -> bytes:
        name = f"{self.split}[{index}]"
        try:
            content = (self.rows[index][column] or {}).get("bytes")
        except MemoryError:
            raise Unread(f"{name}: no memory is left") from None
        except (OSError, ValueError) as error:  # Arrow's errors are these, too
            raise BadImage(name, str(error).replace("\n", " ")) from None
        if content is None:
            raise BadImage(name, f"its {column} holds no bytes")
        return content


def open_saved(data: Segmentation, split: Split, root: Path) -> SavedScenes:
    """A split of such a folder.

    Raises:
        ValueError: it has no such split, or cannot be read.
    """
    rows, mapped = saved_rows(root, split)
    return SavedScenes(rows, split, data, mapped)
