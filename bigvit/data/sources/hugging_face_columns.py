"""Which columns of a Hugging Face data set are images and classes, and which classes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LABELS = ("label", "labels", "fine_label")  # the column taken where several are classes
PLAIN_LABELS = (*LABELS, "class", "target", "cls")  # that may hold integers or text
IMAGES = ("image", "img", "jpg", "png", "webp")  # that may hold bytes alone


class Labels(NamedTuple):
    """The classes of one file's images."""

    file: str
    names: list[str]  # by the file's own class numbers
    numbers: Any  # (images,) of Arrow
    closed: bool = True  # whether they are all that there are; false: those that occur


def columns(kinds: Any, of: str = "") -> tuple[str, str]:
    """Names of the column of images and of that of classes."""
    from datasets import Image

    images = [name for name, kind in kinds.items() if isinstance(kind, Image)]
    images = images or [name for name, kind in kinds.items() if _holds_images(name, kind)]
    labels = [name for name, kind in kinds.items() if has_classes(kind)]
    label = next((n for n in LABELS if n in labels), labels[0] if len(labels) == 1 else None)
    if not labels:
        label = next((n for n in PLAIN_LABELS if n in kinds and _has_values(kinds[n])), None)
    if len(images) != 1 or label is None:
        found = ", ".join(f"{name} ({type(kind).__name__})" for name, kind in kinds.items())
        raise ValueError(
            f"{of}one column of images (Image) and one of classes (ClassLabel, or integers or text "
            f"in a column called {', '.join(PLAIN_LABELS)}) is needed, not {found}; `datasets`' "
            "cast_column and rename_column make them so"
        )
    return images[0], label


def labels(file: str, kind: Any, column: Any) -> Labels:
    """The classes of a file, by the kind of its column; those that nothing names are its values."""
    from pyarrow import compute

    if has_classes(kind):
        return Labels(file, list(kind.names), column)
    values = compute.call_function("unique", [column]).drop_null()
    ordered = values.take(compute.call_function("array_sort_indices", [values]))
    options = compute.SetLookupOptions(ordered, skip_nulls=True)
    numbers = compute.call_function("index_in", [column], options)
    return Labels(file, list(map(str, ordered.to_pylist())), numbers, closed=False)


def united(files: Sequence[Labels]) -> Sequence[Labels]:
    """Where files have the classes that occur there, the first has those of all, in order.

    Raises:
        ValueError: some say all their classes, and others do not.
    """
    closed = [each for each in files if each.closed]
    if len(closed) == len(files):
        return files
    if closed:
        one = next(each for each in files if not each.closed)
        raise ValueError(
            f"{one.file} says no names of its classes, and {closed[0].file} does; write all files "
            "with them, or none"
        )
    names = {name for each in files for name in each.names}
    whole = all(name.lstrip("-").isdecimal() for name in names)
    ordered = sorted(names, key=int) if whole else sorted(names)
    return [Labels("all files", ordered, files[0].numbers[:0]), *files]


def targets(files: Sequence[Labels]) -> NDArray[np.int32]:
    """Class numbers of all images (images,), by the names of the first file.

    Raises:
        ValueError: a file has other names, or an image no class.
    """
    number_of = {name: number for number, name in enumerate(files[0].names)}
    parts: list[NDArray[np.int32]] = []
    for file, own, column, closed in files:
        if closed and (differing := number_of.keys() ^ set(own)):
            raise ValueError(
                f"{file} and {files[0].file} have other classes ({len(own):,} and "
                f"{len(number_of):,}; {min(differing)!r} is in one of them only)"
            )
        numbers = column.to_pandas()
        fine = numbers.between(0, len(own) - 1)  # false of null, too
        if not fine.all():
            row = int(np.argmin(fine.to_numpy()))
            value, place = column[row].as_py(), f"row {row:,} of {file}, counted from 0,"
            if value is None:
                raise ValueError(f"{place} has no class (null); give it one, or leave it out")
            raise ValueError(f"{place} is of class {value}, not of 0 to {len(own) - 1}")
        renumbered = np.array([number_of[name] for name in own], np.int32)
        parts.append(renumbered[numbers.to_numpy().astype(np.int64)])
    return np.concatenate(parts)


def has_classes(kind: Any) -> bool:
    """Whether a column is one of classes."""
    from datasets import ClassLabel

    return isinstance(kind, ClassLabel)


def _has_values(kind: Any) -> bool:
    """Whether a column holds integers or text."""
    from datasets import Value

    return isinstance(kind, Value) and kind.dtype.startswith(("int", "uint", "string", "large_str"))


def _holds_images(name: str, kind: Any) -> bool:
    """Whether a column may hold images that others than `datasets` wrote."""
    of_parts = isinstance(kind, dict) and {"bytes", "path"} == set(kind)
    return of_parts or name in IMAGES and getattr(kind, "dtype", "") in ("binary", "large_binary")
