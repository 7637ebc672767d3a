"""Data sets whose publishers list images and classes in files beside them: Flowers-102, Stanford
Cars, Food-101, Oxford-IIIT Pets, and DomainNet's six domains. Archives are to be unpacked; MATLAB's
files are read as they are.

An image that a list names and that is not there is a bad image, as a damaged one is.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bigvit.data.sources.folders import FileNames, FileSource, is_below, shown
from bigvit.data.sources.source import Split


class Listed(NamedTuple):
    """An image's path from the root, and its class counted from 0."""

    path: str
    number: int


class Form(NamedTuple):
    """How a publisher has laid out a data set."""

    name: str
    marks: tuple[str, ...]  # files that are all there
    images: str  # folder of the images, from the root
    of: Callable[[Path, Split], tuple[list[Listed], list[str]]]  # a split's images; classes


def find_listed(root: Path) -> Form | None:
    """The form of the data set at a root, if it is one of these."""
    for form in FORMS:
        if all((root / mark).is_file() for mark in form.marks):
            return form
    if all((root.parent / f"{root.name}_{split}.txt").is_file() for split in ("train", "test")):
        return DOMAIN
    return None


def open_listed(root: Path, form: Form, split: Split) -> FileSource:
    """The images of a split, in the order of their list.

    Raises:
        ValueError: a list is missing, damaged, or names what cannot be; or the images' folder is
            not there.
    """
    if not (root / form.images).is_dir():
        raise ValueError(f"{form.name}: {form.images}/ is missing; unpack the images there")
    try:
        images, classes = form.of(root, split)
    except FileNotFoundError as error:
        raise ValueError(f"{form.name}: {error.filename} is missing; get it, too") from None
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"{form.name}: a list is damaged ({what}); get it again") from None
    for place, (path, number) in enumerate(images):
        if not is_below(os.fsencode(path)):
            raise ValueError(
                f"{form.name}: a list names a file outside of its folder, {path!r}; it is damaged"
            )
        if not 0 <= number < len(classes):
            raise ValueError(
                f"{form.name}: image {place:,} of the list ({shown(path.encode())}) is of class "
                f"{number + 1}, not of 1 to {len(classes)}; get it again"
            )
    if not images:
        raise ValueError(f"{form.name}: its list of images to {split} is empty; get it again")
    targets = np.array([number for _, number in images], np.int32)
    return FileSource(root, FileNames(os.fsencode(path) for path, _ in images), targets, classes)


def _matlab(file: Path, name: str) -> Any:
    """A variable of a MATLAB file, its dimensions of length 1 left out."""
    from scipy.io import loadmat

    if not file.is_file():
        raise FileNotFoundError(2, "missing", str(file))
    try:
        return loadmat(file, squeeze_me=True)[name]
    except Exception as error:  # of a damaged file scipy raises whatever it meets
        raise ValueError(f"{file.name}: {error}") from None


def _lines(file: Path) -> Iterator[list[str]]:
    """The words of each line of a text file; of a comment none."""
    with file.open(encoding="utf-8") as opened:
        for line in opened:
            if (words := line.split()) and not words[0].startswith("#"):
                yield words


def _flowers(root: Path, split: Split) -> tuple[list[Listed], list[str]]:
    """The training images are those that the publishers call training and validation (2,040)."""
    labels = np.atleast_1d(_matlab(root / "imagelabels.mat", "labels")).astype(int)
    sets = ("trnid", "valid") if split == "train" else ("tstid",)
    file = root / "setid.mat"
    numbers = np.concatenate([np.atleast_1d(_matlab(file, name)) for name in sets])
    images = [Listed(f"jpg/image_{n:05d}.jpg", int(labels[n - 1]) - 1) for n in numbers.tolist()]
    return images, [str(n + 1) for n in range(int(labels.max()))]


def _cars(root: Path, split: Split) -> tuple[list[Listed], list[str]]:
    """Test images have their classes in a file of their own, which lies beside or in devkit/.
    Kaggle's copy has images in a folder within the folder."""
    meta = root / "devkit" / "cars_meta.mat"
    classes = [str(name) for name in np.atleast_1d(_matlab(meta, "class_names"))]
    file = root / "devkit" / "cars_train_annos.mat"
    if split == "test":
        name = "cars_test_annos_withlabels.mat"
        file = root / name if (root / name).is_file() else root / "devkit" / name
    rows = np.atleast_1d(_matlab(file, "annotations"))
    if "class" not in (rows.dtype.names or ()):
        raise ValueError(f"{file.name} says no classes")
    folder = f"cars_{split}"
    if (root / folder / folder).is_dir():
        folder = f"{folder}/{folder}"
    return [Listed(f"{folder}/{row['fname']}", int(row["class"]) - 1) for row in rows], classes


def _food(root: Path, split: Split) -> tuple[list[Listed], list[str]]:
    meta = root / "meta"
    classes = [words[0] for words in _lines(meta / "classes.txt")]
    number_of = {name: number for number, name in enumerate(classes)}
    listed = [words[0] for words in _lines(meta / f"{split}.txt")]
    return [Listed(f"images/{name}.jpg", number_of[name.split("/")[0]]) for name in listed], classes


def _pets(root: Path, split: Split) -> tuple[list[Listed], list[str]]:
    """Classes are called as their images are, without the number."""
    lists = {"train": "trainval.txt", "test": "test.txt"}
    rows = {key: list(_lines(root / "annotations" / file)) for key, file in lists.items()}
    names = {int(n) - 1: name.rpartition("_")[0] for name, n, *_ in chain(*rows.values())}
    images = [Listed(f"images/{name}.jpg", int(n) - 1) for name, n, *_ in rows[split]]
    return images, _named(names)


def _domain(root: Path, split: Split) -> tuple[list[Listed], list[str]]:
    """Lines are DOMAIN/CLASS/IMAGE NUMBER."""
    images: dict[str, list[Listed]] = {"train": [], "test": []}
    names: dict[int, str] = {}
    for key, listed in images.items():
        for path, number in _lines(root.parent / f"{root.name}_{key}.txt"):
            domain, name, file = path.split("/")
            if domain != root.name:
                raise ValueError(f"{path} is of another domain")
            names[int(number)] = name
            listed.append(Listed(f"{name}/{file}", int(number)))
    return images[split], _named(names)


def _named(names: Mapping[int, str]) -> list[str]:
    """Names by number; a number that no image has is its own."""
    return [names.get(number, str(number)) for number in range(max(names, default=-1) + 1)]


DOMAIN = Form("DomainNet", (), ".", _domain)
FORMS = (
    Form("Flowers-102", ("imagelabels.mat", "setid.mat"), "jpg", _flowers),
    Form("Stanford Cars", ("devkit/cars_meta.mat",), "cars_train", _cars),
    Form("Food-101", ("meta/classes.txt", "meta/train.txt"), "images", _food),
    Form("Oxford-IIIT Pets", ("annotations/trainval.txt",), "images", _pets),
)
