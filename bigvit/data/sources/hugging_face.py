"""Hugging Face data sets: local parquet files, a folder of `save_to_disk`, or a name on the hub.

Map-style and undecoded: each image is read by its number and decoded here, so a bad one is only
that one. Parquet is converted to Arrow once, in the cache of `datasets` (HF_DATASETS_CACHE). Local
data are opened by calls that never look at the network; only `hf:NAME` may.

Class numbers are each file's own: where its names stand in another order, they are renumbered.
Where no column says its classes, one of integers or text is taken (`label`, `class`, ...), whose
values are the classes, in order. Images are columns of `datasets`' kind, or of the same bytes and
paths written by others. A cell that holds no bytes may name a file below the data root, and no
other.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from mmap import MADV_NORMAL, MADV_RANDOM, PROT_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from PIL import Image

from bigvit.data.decode import BadImage, Photo, Unread, content_of
from bigvit.data.sources.folders import is_plain, shown
from bigvit.data.sources.hugging_face_columns import (
    PLAIN_LABELS,
    Labels,
    columns,
    has_classes,
    labels,
    targets,
    united,
)
from bigvit.data.sources.source import Split, choose
from bigvit.recipe.words import read_json

log = logging.getLogger(__name__)
HUB = "hf:"
ROWS = 1 << 16  # whose names are made at once
LARGE = (
    2e9  # bytes of parquet from which on it is said that they are converted, which takes minutes
)


class HuggingFaceSource:
    """The rows of a `datasets.Dataset` that has a column of images and one of classes."""

    def __init__(
        self,
        rows: Any,
        split: Split,
        folders: Sequence[str | Path] = (),
        files: Sequence[Labels] | None = None,
        maps: Sequence[mmap] = (),
    ) -> None:
        """
        Args:
            folders: in which the files may lie that cells name.
            files: the classes of the files that the rows are from; None: as the rows have them.
            maps: the files that hold the rows.

        Raises:
            ValueError: the columns are not such.
        """
        from datasets import Image

        image, label = columns(rows.features)
        self.split, self.image, self.maps = split, image, maps
        files = united(list(_labels_of(rows, label))) if files is None else files
        self.classes: list[str] = files[0].names
        self.targets = targets(files)
        if len(self.targets) != len(rows):
            raise ValueError(
                f"{split} has {len(rows):,} rows in the cache of `datasets`, but "
                f"{len(self.targets):,} labels; remove that cache, and start again"
            )
        self.rows = rows.select_columns(image).cast_column(image, Image(decode=False))
        self.folders = [os.path.abspath(folder) for folder in folders]
        self._paths, self._bytes = _cells(self.rows, image)
        for index in self._without_bytes():
            if (path := self._paths[index].as_py()) and self._below(path) is None:
                raise ValueError(
                    f"{self.name(index)} is outside of it; let cells hold bytes, or paths below "
                    "that folder"
                )
        self._advise(MADV_NORMAL)

    def __len__(self) -> int:
        return len(self.targets)

    def name(self, index: int) -> str:
        path = self._paths[index].as_py()
        return f"{self.split}[{index}]" + (f" {shown(os.fsencode(path))}" if path else "")

    def all_names(self) -> Iterator[bytes]:
        import pyarrow as pa
        from pyarrow import compute

        self._advise(MADV_RANDOM)

        def joined(*parts: Any) -> Any:
            return compute.call_function("binary_join_element_wise", [*parts, ""])

        for first in range(0, len(self), ROWS):
            paths = self._paths.slice(first, ROWS).combine_chunks().fill_null("")
            rows = range(first, first + len(paths))
            start = f"{self.split}[", pa.array(np.arange(first, rows.stop)).cast("string")
            names = joined(*start, "] ", paths, "\0")
            if (none := compute.call_function("equal", [paths, ""])).true_count:
                names = compute.call_function("if_else", [none, joined(*start, "]\0"), names])
            _, offsets, content = names.buffers()
            text = memoryview(content)[: np.frombuffer(offsets, np.int32)[len(rows)]].tobytes()
            plain = len(text) - len(text.translate(None, b"\0")) == len(rows) and is_plain(text)
            yield text if plain else b"".join(f"{self.name(row)}\0".encode() for row in rows)
        self._advise(MADV_NORMAL)

    def contents(self) -> NDArray[np.int64]:
        from pyarrow import compute

        self._advise(MADV_RANDOM)
        lengths = compute.call_function("binary_length", [self._bytes])
        sizes = lengths.fill_null(-1).to_numpy().astype(np.int64)
        for index in self._without_bytes():
            path = self._below(self._paths[index].as_py() or "")
            if path is not None and os.path.isfile(path):
                sizes[index] = os.stat(path).st_size
        self._advise(MADV_NORMAL)
        return sizes

    def read(self, index: int) -> Image.Image:
        return self.open(index).image()

    def open(self, index: int) -> Photo:
        name = self.name(index)
        try:
            cell = self.rows[index][self.image] or {}
        except MemoryError:
            raise Unread(f"{name}: no memory is left") from None
        except (OSError, ValueError) as error:  # Arrow's errors are these, too
            raise BadImage(name, str(error).replace("\n", " ")) from None
        content, path = cell.get("bytes"), self._below(cell.get("path") or "")
        if content is None:
            content = content_of(path, name) if path else b""
        return Photo(content, name)

    def _advise(self, advice: int) -> None:
        """MADV_RANDOM: a column is read, a page here and there, and not what lies around it."""
        for mapped in self.maps:
            mapped.madvise(advice)

    def _without_bytes(self) -> Iterable[int]:
        """Numbers of the images whose cell holds none."""
        if not self._bytes.null_count:
            return ()
        return np.flatnonzero(self._bytes.is_null().to_numpy()).tolist()

    def _below(self, path: str) -> str | None:
        """The file that a cell names, if it may."""
        for folder in self.folders:
            whole = os.path.normpath(os.path.join(folder, path))
            if whole.startswith(os.path.join(folder, "")):
                return whole
        return None


def _cells(rows: Any, image: str) -> tuple[Any, Any]:
    """The columns of paths and of bytes inside a column of images, none of them read."""
    cells = rows.data.column(image)
    parts = cells.flatten()
    return parts[cells.type.get_field_index("path")], parts[cells.type.get_field_index("bytes")]


def _labels_of(rows: Any, label: str) -> Iterable[Labels]:
    """The classes of each Arrow file of a data set; names that it does not say are the set's."""
    from datasets import Features

    if not rows.cache_files:
        yield labels("memory", rows.features[label], rows.data.column(label))
    for file in (cached["filename"] for cached in rows.cache_files):
        table = _stream(file)[0].read_all()  # none of it is copied
        kind: Any = Features.from_arrow_schema(table.schema).get(label)
        yield labels(file, kind if has_classes(kind) else rows.features[label], table[label])


def _stream(file: str) -> tuple[Any, mmap]:
    """An Arrow file, mapped by us: of what Arrow maps, it asks the system to fetch every byte."""
    import pyarrow as pa

    with open(file, "rb") as opened:
        mapped = mmap(opened.fileno(), 0, prot=PROT_READ)
    mapped.madvise(MADV_RANDOM)
    return pa.ipc.open_stream(pa.BufferReader(pa.py_buffer(mapped))), mapped


@contextmanager
def _unread() -> Iterator[list[mmap]]:
    """In here `datasets` opens files as `_stream` does; yields those."""
    from datasets import table

    maps: list[mmap] = []

    def opened(file: str) -> Any:
        stream, mapped = _stream(file)
        maps.append(mapped)
        return stream

    kept = table._memory_mapped_record_batch_reader_from_file  # pyright: ignore
    table._memory_mapped_record_batch_reader_from_file = opened
    try:
        yield maps
    finally:
        table._memory_mapped_record_batch_reader_from_file = kept


@contextmanager
def _without_bars() -> Iterator[None]:
    """In here `datasets` draws no progress upon the terminal."""
    from datasets import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def find_saved(root: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return (root / "dataset_dict.json").is_file() or (root / "state.json").is_file()


def open_saved(root: Path, split: Split) -> HuggingFaceSource:
    """A split of a folder that `DatasetDict.save_to_disk` wrote. Raises as `saved_rows` does."""
    rows, maps = saved_rows(root, split)
    return HuggingFaceSource(rows, split, [root], maps=maps)


def saved_rows(root: Path, split: Split) -> tuple[Any, list[mmap]]:
    """The rows of a split of such a folder, and the files that hold them.

    Raises:
        ValueError: it has no such split, or cannot be read.
    """
    try:
        splits = read_json(root / "dataset_dict.json")["splits"]
    except FileNotFoundError:
        said = "it is one split; save a DatasetDict of train and validation"
        raise ValueError(said) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"dataset_dict.json is damaged: {error}") from None
    name = choose(splits, split)
    from datasets import load_from_disk

    try:
        with _unread() as maps:
            rows = load_from_disk(str(root / name))
    except (OSError, ValueError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from None
    return rows, maps


def find_parquet(root: Path) -> dict[str, list[Path]]:
    """Parquet files in ROOT or ROOT/data by split: train.parquet, train-00000-of-00010.parquet.
    Where no name says one, all are to train on, as `datasets` has it."""
    found: dict[str, list[Path]] = {}
    for file in sorted([*root.glob("*.parquet"), *root.glob("data/*.parquet")]):
        known = re.match(r"(train|validation|valid|val|test)(?![a-z])", file.name)
        found.setdefault(known[1] if known else "", []).append(file)
    return {"train": found[""]} if found.keys() == {""} else found


def open_parquet(root: Path, found: dict[str, list[Path]], split: Split) -> HuggingFaceSource:
    """A split of parquet files.

    Raises:
        ValueError: there are none of the split, or they cannot be read.
    """
    files = found[choose(found, split)]
    from datasets import Dataset, config
    from datasets.exceptions import DatasetGenerationError

    classes = united([_read_labels(file, split) for file in files])
    targets(classes)  # before hours are spent on converting
    try:
        cache = Path(config.HF_DATASETS_CACHE) / f"bigvit-{_fingerprint(files)}"
        size = sum(file.stat().st_size for file in files)
        if size > LARGE and not cache.exists():
            log.warning(f"{size / 1e9:.0f} GB of parquet become Arrow files in {cache}, once")
        with _without_bars(), _unread() as maps:
            rows = Dataset.from_parquet([str(file) for file in files], cache_dir=str(cache))
    except (OSError, ValueError, DatasetGenerationError) as error:
        raise ValueError(f"{split} cannot be read: {error}") from None
    return HuggingFaceSource(rows, split, [root], classes, maps)


def _read_labels(file: Path, split: Split) -> Labels:
    """The classes of the images in a parquet file."""
    from datasets import Features
    from pyarrow import parquet

    try:
        opened = parquet.ParquetFile(file)
        kinds = Features.from_arrow_schema(opened.schema_arrow)
        numbers = {
            name: opened.read(columns=[name])
            for name, kind in kinds.items()
            if has_classes(kind) or name in PLAIN_LABELS
        }
    except (OSError, ValueError) as error:
        raise ValueError(f"{split} cannot be read: {file.name}: {error}") from None
    label = columns(kinds, f"{file.name}: ")[1]
    return labels(str(file), kinds[label], numbers[label].column(label))


def _fingerprint(files: Sequence[Path]) -> str:
    """What changes with parquet files' contents, as their names and times of change, which
    `datasets` goes by, need not: sizes and footers, where all parts' sizes and bounds stand."""
    hasher = xxhash.xxh3_128()
    for file in files:
        with file.open("rb") as opened:
            size = opened.seek(-8, os.SEEK_END) + 8
            footer = int.from_bytes(opened.read(4), "little")
            opened.seek(-min(size, 8 + footer), os.SEEK_END)
            hasher.update(f"{size} {footer} ".encode() + opened.read())
    return hasher.hexdigest()


def open_hub(name: str, split: Split) -> HuggingFaceSource:
    """A split of a data set on the Hugging Face hub, fetched unless the cache has it.

    Raises:
        ValueError: it cannot be had.
    """
    from datasets import config, get_dataset_split_names, load_dataset
    from huggingface_hub.constants import HF_HUB_CACHE

    try:
        with _unread() as maps:
            rows = load_dataset(name, split=choose(get_dataset_split_names(name), split))
    except OSError as error:
        raise ValueError(str(error)) from None
    fetched = (HF_HUB_CACHE, config.HF_DATASETS_CACHE, config.DOWNLOADED_DATASETS_PATH)
    return HuggingFaceSource(rows, split, fetched, maps=maps)
