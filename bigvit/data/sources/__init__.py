"""Where images come from, one form a file."""

from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from pathlib import Path

import numpy as np

from bigvit.data.levels import Level, cifar100_level, coarser_level, own_level, read_level
from bigvit.data.sources import arrays, folders, hugging_face, inaturalist, listed, shards
from bigvit.data.sources.digits import DigitsSource
from bigvit.data.sources.part import PartSource, parted
from bigvit.data.sources.scenes import SCENES, open_scenes
from bigvit.data.sources.source import NAMES, Source, Split
from bigvit.recipe import Data, Detection, Digits, Images, Segmentation

__all__ = [
    "DigitsSource",
    "Source",
    "Split",
    "find_level",
    "levelled",
    "matched",
    "open_own",
    "open_source",
    "open_splits",
    "renumbered",
]

PARITY = {str(digit): ("even", "odd")[digit % 2] for digit in range(10)}

FORMS = """the forms that are read:
  ROOT/train/CLASS/*.jpg and ROOT/val/CLASS/*.jpg (or test/); to evaluate only, or with a part held
    out (data.held_out), ROOT/CLASS/*.jpg
  ROOT/train2018.json, ROOT/val2018.json and train_val2018/, iNaturalist's (other years too)
  ROOT/train-*.parquet and ROOT/validation-*.parquet, there or in ROOT/data/
  a folder that `datasets`' DatasetDict.save_to_disk wrote
  ROOT/*train*.tar and ROOT/*val*.tar, or ROOT/train/*.tar and ROOT/val/*.tar: webdataset's shards
    of KEY.jpg and KEY.cls (or KEY.json)
  cifar-10-batches-bin or cifar-100-binary, CIFAR's binary version
  Flowers-102 (jpg/, imagelabels.mat, setid.mat), Stanford Cars (cars_train/, cars_test/, devkit/),
  Food-101 (images/, meta/), Oxford-IIIT Pets (images/, annotations/), SVHN (train_32x32.mat), and a
    domain of DomainNet (clipart/, with clipart_train.txt and clipart_test.txt beside it)
  train-images-idx3-ubyte[.gz] and the other IDX files of MNIST and Fashion-MNIST
  hf:NAME, a data set on the Hugging Face hub"""


def open_source(
    data: Data, split: Split, root: Path | None = None, classes_map: Path | None = None
) -> Source:
    """The images of a split of a recipe's data, which lie at `root` unless they are bundled, by the
    classes of the recipe's level.

    Args:
        classes_map: the file that says them, where the level is "map".

    Raises:
        ValueError: they are not there, or cannot be read; or a class is of no class of the level.
    """
    source = open_own(data, split, root)
    return levelled(source, find_level(data.level, source.classes, root, classes_map))


def open_own(data: Data, split: Split, root: Path | None) -> Source:
    """The same by the data set's own classes, whatever the recipe's level."""
    match data:
        case Digits():
            return DigitsSource(split)
        case Segmentation() | Detection():
            if root is None:
                forms = SCENES[type(data)]
                raise ValueError(f"--data-root is missing: where is {data.dataset}? {forms}")
            return open_scenes(data, split, root)
        case Images():
            if root is None:
                raise ValueError(f"--data-root is missing: where is {data.dataset}? {FORMS}")
            if data.held_out:
                return _parts(root, data.held_out)[split]
            try:
                return _open(root, split)
            except ValueError as error:
                if split == "train" or data.tested:
                    raise
                without = f"{data.dataset} has no test images in the recipe (data.test_images 0)"
                raise ValueError(f"{error}; {without}: name others by --data-root") from None


def open_splits(
    data: Data, root: Path | None = None, classes_map: Path | None = None
) -> tuple[Source, Source | None]:
    """Training and test images of a recipe's data; None where it has no test images. Classes are
    numbered as the training images'.

    Raises:
        ValueError: they are not there, cannot be read, or have other classes for testing; or a
            class is of no class of the recipe's level.
    """
    train = open_own(data, "train", root)
    level = find_level(data.level, train.classes, root, classes_map)
    if not data.tested:
        return levelled(train, level), None
    test = open_own(data, "test", root)
    try:
        return levelled(train, level), levelled(matched(test, train), level)
    except ValueError as error:
        raise ValueError(f"--data-root {root}: {error}") from None


def find_level(
    name: str, classes: Sequence[str], root: Path | None = None, classes_map: Path | None = None
) -> Level:
    """A level of a data set's own classes, by its name in a recipe (`data.level`).

    Args:
        root: where the data set is, whose lists may say it.
        classes_map: the file that does, where it is "map".

    Raises:
        ValueError: what says it is not there, cannot be read, or lacks a class.
    """
    match name:
        case "own" | "digit":
            return own_level(classes)
        case "parity":
            return coarser_level(PARITY, classes, "the digits' parity")
        case "cifar100":
            return cifar100_level(classes)
        case "map":
            if classes_map is None:
                raise ValueError(
                    "--classes-map is missing: which coarser class is each class of (data.level "
                    "map)? Name a JSON object, or CSV of two columns"
                )
            return read_level(classes_map, classes)
        case _:
            where = f"--data-root {root}: no {name} is known of its classes (data.level)"
            if root is None:
                raise ValueError(f"{where}; name iNaturalist's folder")
            try:
                ranks = inaturalist.ranks_of(root)
                of_class = {each: ranks[each][name] for each in ranks}
                return coarser_level(of_class, classes, f"iNaturalist's {name}")
            except (ValueError, KeyError) as error:
                raise ValueError(f"{where}: {error}") from None


def levelled(source: Source, level: Level) -> Source:
    """A source by the classes of a level of its own ones."""
    if level == own_level(source.classes):
        return source
    by_level = copy(source)
    by_level.classes = level.classes
    by_level.targets = np.array(level.of, np.int32)[source.targets]
    return by_level


def matched(test: Source, train: Source) -> Source:
    """Test images by the class numbers of the training images.

    Raises:
        ValueError: these have other classes.
    """
    try:
        by_train = renumbered(test, train.classes)
        renumbered(train, test.classes)
    except ValueError as error:
        raise ValueError(f"test has other classes than train: {error}") from None
    return by_train


def renumbered(source: Source, classes: list[str]) -> Source:
    """A source by the class numbers that its names have in a list, which may have more.

    Raises:
        ValueError: a name is not in the list, or twice.
    """
    if source.classes == classes:
        return source
    number_of = {name: number for number, name in enumerate(classes)}
    for names in (source.classes, classes):
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two classes are called {twice!r}")
    if strange := [name for name in source.classes if name not in number_of]:
        shown = ", ".join(strange[:3]) + ", ..." * (len(strange) > 3)
        of = f"{len(strange):,} of {len(source.classes):,} classes"
        raise ValueError(f"{of} are not among the other {len(classes):,} ({shown})")
    numbers = np.array([number_of[name] for name in source.classes], np.int32)
    by_others = copy(source)
    by_others.classes, by_others.targets = classes, numbers[source.targets]
    return by_others


@lru_cache(maxsize=1)  # as `_open`'s
def _parts(root: Path, held_out: float) -> dict[Split, PartSource]:
    """Both parts of the training images, or of all there are where no folder says which those
    are."""
    try:
        whole = _open(root, "train")
    except ValueError:
        if not root.is_dir() or not folders.find_classes(root):
            raise
        whole = _open(root, "test")
    return parted(whole, held_out)


@lru_cache(maxsize=2)  # listed once: for the check before torch is imported, and for training
def _open(root: Path, split: Split) -> Source:
    """Recognise what lies at a root, and open a split of it."""
    try:
        if (text := str(root)).startswith(hugging_face.HUB):
            return hugging_face.open_hub(text.removeprefix(hugging_face.HUB), split)
        return _open_folder(root, split)
    except OSError as error:
        raise ValueError(f"--data-root {root} cannot be read: {error}") from None
    except ValueError as error:
        raise ValueError(f"--data-root {root}: {error}") from None


def _open_folder(root: Path, split: Split) -> Source:
    if not root.is_dir():
        raise ValueError("there is no such folder")
    if hugging_face.find_saved(root):
        return hugging_face.open_saved(root, split)
    if found := hugging_face.find_parquet(root):
        return hugging_face.open_parquet(root, found, split)
    if form := listed.find_listed(root):
        return listed.open_listed(root, form, split)
    if arrays.find_svhn(root):
        return arrays.open_svhn(root, split)
    if folder := arrays.find_cifar(root):
        return arrays.open_cifar(folder, split)
    if arrays.find_idx(root):
        return arrays.open_idx(root, split)
    if any((root / name).exists() for name in ("cifar-10-batches-py", "cifar-100-python")):
        raise ValueError(
            "CIFAR's Python version is pickled code, which is not read; get the binary version"
        )
    if any(folders.find_classes(root / name) for name in NAMES[split] if (root / name).is_dir()):
        return folders.open_folders(root, split)
    if inaturalist.find_lists(root):
        return inaturalist.open_lists(root, split)
    if split == "test" and folders.find_classes(root):
        return folders.open_classes(root, "")
    if found := shards.find_shards(root):
        return shards.open_shards(root, found, split)
    if folders.find_folders(root):
        return folders.open_folders(root, split)
    raise ValueError(f"no data set is recognised there; {FORMS}")
