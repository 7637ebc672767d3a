"""A level of classes: a file that says a coarser class of each. No torch here."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bigvit.recipe.words import read_json


class Level(NamedTuple):
    """Classes, and which of them each class of a data set is."""

    classes: list[str]
    of: list[int]  # by the data set's number


def own_level(classes: Sequence[str]) -> Level:
    """The data set's classes themselves."""
    return Level(list(classes), list(range(len(classes))))


def read_level(path: Path, classes: Sequence[str]) -> Level:
    """The level that a file says: a JSON object of class names with the coarser class of each, or
    CSV with both in a row. Those of no class here are left out.

    Raises:
        ValueError: it cannot be read, or lacks a class.
    """
    coarser = read_map(path)
    if missing := [name for name in classes if name not in coarser]:
        raise ValueError(
            f"--classes-map {path}: it lacks {len(missing):,} of {len(classes):,} classes "
            f"({', '.join(missing[:3])}{', ...' * (len(missing) > 3)}); add them"
        )
    names = sorted({coarser[name] for name in classes})
    number = {name: place for place, name in enumerate(names)}
    return Level(names, [number[coarser[name]] for name in classes])


def read_map(path: Path) -> dict[str, str]:
    """Names of classes with the coarser class of each.

    Raises:
        ValueError: it cannot be read, or says two of one class.
    """
    try:
        if path.suffix.lower() == ".csv":
            return _read_csv(path)
        found = read_json(path)
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise ValueError(f"--classes-map {path}: cannot be read ({reason})") from None
    if not isinstance(found, dict) or not all(type(each) is str for each in found.values()):
        raise ValueError(
            f'--classes-map {path}: must hold an object {{"class": "coarser class", ...}}, or be '
            "a .csv with both in a row"
        )
    return found


def _read_csv(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            if not row:
                continue
            if len(row) != 2:
                raise ValueError(f"row {number} has {len(row)} cells and not 2")
            if found.setdefault(row[0], row[1]) != row[1]:
                raise ValueError(f"row {number} says another coarser class of {row[0]!r}")
    return found
