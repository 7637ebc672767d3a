"""Where images come from, one form a file."""

from functools import lru_cache
from pathlib import Path

import numpy as np

from bigvit.data.sources import arrays, folders, hugging_face, inaturalist
from bigvit.data.sources.digits import DigitsSource
from bigvit.data.sources.source import Source, Split
from bigvit.recipe import Data, Digits, Images

__all__ = ["DigitsSource", "Source", "Split", "open_source"]

FORMS = """the forms that are read:
  ROOT/train/CLASS/*.jpg and ROOT/val/CLASS/*.jpg (or test/); to evaluate only, ROOT/CLASS/*.jpg
  ROOT/train2018.json, ROOT/val2018.json and train_val2018/, iNaturalist's (other years too)
  ROOT/train-*.parquet and ROOT/validation-*.parquet, there or in ROOT/data/
  a folder that `datasets`' DatasetDict.save_to_disk wrote
  cifar-10-batches-bin or cifar-100-binary, CIFAR's binary version
  train-images-idx3-ubyte[.gz] and the other IDX files of MNIST and Fashion-MNIST
  hf:NAME, a data set on the Hugging Face hub"""


def open_source(data: Data, split: Split, root: Path | None = None) -> Source:
    """The images of a split of a recipe's data, which lie at `root` unless they are bundled.

    Raises:
        ValueError: they are not there, cannot be read, or are not as many as the recipe says.
    """
    match data:
        case Digits():
            return DigitsSource(split)
        case Images():
            if root is None:
                raise ValueError(f"--data-root is missing: where is {data.dataset}? {FORMS}")
            source = _open(root, split)
            _compare(data, split, source, root)
            return source


@lru_cache(maxsize=2)  # listed once: for the check before torch is imported, and for training
def _open(root: Path, split: Split) -> Source:
    """Recognise what lies at a root, and open a split of it."""
    if (text := str(root)).startswith(hugging_face.HUB):
        return hugging_face.open_hub(text.removeprefix(hugging_face.HUB), split)
    if not root.is_dir():
        raise ValueError(f"--data-root {root}: there is no such folder")
    try:
        return _open_folder(root, split)
    except OSError as error:
        raise ValueError(f"--data-root {root} cannot be read: {error}") from None


def _open_folder(root: Path, split: Split) -> Source:
    if hugging_face.find_saved(root):
        return hugging_face.open_saved(root, split)
    if found := hugging_face.find_parquet(root):
        return hugging_face.open_parquet(root, found, split)
    if folder := arrays.find_cifar(root):
        return arrays.open_cifar(folder, split)
    if arrays.find_idx(root):
        return arrays.open_idx(root, split)
    if shards := next((path for glob in ("*.tar", "*/*.tar") for path in root.glob(glob)), None):
        raise ValueError(
            f"--data-root {root}: webdataset shards ({shards.name}) are read in order only; "
            "convert them once: datasets.load_dataset('webdataset', data_files='ROOT/*.tar', "
            "split='train'), its classes cast to ClassLabel, then .to_parquet('train.parquet')"
        )
    if any((root / name).exists() for name in ("cifar-10-batches-py", "cifar-100-python")):
        raise ValueError(
            f"--data-root {root}: CIFAR's Python version is pickled code, which is not read; "
            "get the binary version"
        )
    if folders.find_folders(root):
        return folders.open_folders(root, split)
    if inaturalist.find_lists(root):
        return inaturalist.open_lists(root, split)
    if split == "test" and folders.find_classes(root):
        return folders.FolderSource(root, "")
    raise ValueError(f"--data-root {root}: no data set is recognised there; {FORMS}")


def _compare(data: Images, split: Split, source: Source, root: Path) -> None:
    """Refuse a data set that is not the recipe's."""
    if len(source.classes) != data.classes:
        raise ValueError(
            f"--data-root {root}: {split} has {len(source.classes):,} classes, but {data.dataset} "
            f"has {data.classes:,} in the recipe (data.classes)"
        )
    if split == "train" and len(source) != data.train_images:
        raise ValueError(
            f"--data-root {root}: train has {len(source):,} images, but {data.dataset} has "
            f"{data.train_images:,} in the recipe (data.train_images)"
        )
    if len(source) and int(np.max(source.targets)) >= data.classes:
        raise ValueError(f"--data-root {root}: {split} has class numbers above {data.classes - 1}")
