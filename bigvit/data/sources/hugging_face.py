"""Hugging Face data sets: local parquet files, a folder of `save_to_disk`, or a name on the hub.

Map-style and undecoded: each image is read by its number and decoded here, so a bad one is only
that one. Parquet is converted to Arrow once, in the cache of `datasets` (HF_DATASETS_CACHE). Local
data are opened by calls that never look at the network; only `hf:NAME` may.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bigvit.data.decode import BadImage, decode
from bigvit.data.sources.source import NAMES, Split

HUB = "hf:"
LABELS = ("label", "labels", "fine_label")  # the column taken where several are classes


class HuggingFaceSource:
    """The rows of a `datasets.Dataset` that has a column of images and one of classes."""

    def __init__(self, rows: Any, split: Split, where: str) -> None:
        """
        Raises:
            ValueError: the columns are not such.
        """
        from datasets import ClassLabel, Image

        kinds = rows.features
        images = [name for name, kind in kinds.items() if isinstance(kind, Image)]
        labels = [name for name, kind in kinds.items() if isinstance(kind, ClassLabel)]
        label = next((n for n in LABELS if n in labels), labels[0] if len(labels) == 1 else None)
        if len(images) != 1 or label is None:
            found = ", ".join(f"{name} ({type(kind).__name__})" for name, kind in kinds.items())
            raise ValueError(
                f"--data-root {where}: one column of images (Image) and one of classes "
                f"(ClassLabel) is needed, not {found}; `datasets`' cast_column makes them so"
            )
        self.image, self.split = images[0], split
        self.classes: list[str] = list(kinds[label].names)
        targets = rows.data.column(label).to_pandas()
        if targets.isna().any() or not targets.between(0, len(self.classes) - 1).all():
            raise ValueError(f"--data-root {where}: some images of {split} have no class")
        self.targets: NDArray[np.int32] = targets.to_numpy().astype(np.int32)
        self.rows = rows.select_columns(self.image).cast_column(self.image, Image(decode=False))

    def __len__(self) -> int:
        return len(self.targets)

    def name(self, index: int) -> str:
        path = (self.rows[index][self.image] or {}).get("path")
        return f"{self.split}[{index}]" + (f" {path}" if path else "")

    def target(self, index: int) -> int:
        return int(self.targets[index])

    def read(self, index: int) -> Image.Image:
        cell = self.rows[index][self.image] or {}
        content, path = cell.get("bytes"), cell.get("path")
        if content is None:
            try:
                content = Path(path).read_bytes() if path else b""
            except OSError as error:
                reason = error.strerror or "cannot be read"
                raise BadImage(self.name(index), reason) from None
        return decode(content, self.name(index))


def find_saved(root: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return (root / "dataset_dict.json").is_file() or (root / "state.json").is_file()


def open_saved(root: Path, split: Split) -> HuggingFaceSource:
    """A split of a folder that `DatasetDict.save_to_disk` wrote.

    Raises:
        ValueError: it has no such split, or cannot be read.
    """
    try:
        splits = json.loads((root / "dataset_dict.json").read_text())["splits"]
    except FileNotFoundError:
        raise ValueError(
            f"--data-root {root}: it is one split; save a DatasetDict of train and validation"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--data-root {root}: dataset_dict.json is damaged: {error}") from None
    name = _choose(splits, split, str(root))
    from datasets import load_from_disk

    try:
        rows = load_from_disk(str(root / name))
    except (OSError, ValueError) as error:
        raise ValueError(f"--data-root {root / name} cannot be read: {error}") from None
    return HuggingFaceSource(rows, split, str(root))


def find_parquet(root: Path) -> dict[str, list[Path]]:
    """Parquet files in ROOT or ROOT/data by split: train.parquet, train-00000-of-00010.parquet."""
    found: dict[str, list[Path]] = {}
    for file in sorted([*root.glob("*.parquet"), *root.glob("data/*.parquet")]):
        known = re.match(r"(train|validation|valid|val|test)(?![a-z])", file.name)
        found.setdefault(known[1] if known else "", []).append(file)
    return found


def open_parquet(root: Path, found: dict[str, list[Path]], split: Split) -> HuggingFaceSource:
    """A split of parquet files.

    Raises:
        ValueError: there are none of the split, or they cannot be read.
    """
    files = found[_choose(found, split, str(root))]
    from datasets import Dataset
    from datasets.exceptions import DatasetGenerationError
    from pyarrow import parquet

    try:
        for file in files:  # before hours are spent on converting the others
            parquet.read_metadata(file)
        rows = Dataset.from_parquet([str(file) for file in files])
    except (OSError, ValueError, DatasetGenerationError) as error:
        raise ValueError(f"--data-root {root}: {split} cannot be read: {error}") from None
    return HuggingFaceSource(rows, split, str(root))


def open_hub(name: str, split: Split) -> HuggingFaceSource:
    """A split of a data set on the Hugging Face hub, fetched unless the cache has it.

    Raises:
        ValueError: it cannot be had.
    """
    from datasets import get_dataset_split_names, load_dataset

    where = f"{HUB}{name}"
    try:
        chosen = _choose(get_dataset_split_names(name), split, where)
        rows = load_dataset(name, split=chosen)
    except (OSError, ValueError) as error:
        text = str(error).removeprefix(f"--data-root {where}: ")
        raise ValueError(f"--data-root {where}: {text}") from None
    return HuggingFaceSource(rows, split, where)


def _choose(there: Any, split: Split, where: str) -> str:
    for name in NAMES[split]:
        if name in there:
            return name
    listed = ", ".join(name or "files of another name" for name in there)
    raise ValueError(
        f"--data-root {where}: it has no {' or '.join(NAMES[split])} split, only {listed}"
    )
