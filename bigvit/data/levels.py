"""Levels of classes: at which they are told apart. A coarser class of each is said by a file, built
in for CIFAR-100, or handed in. No torch here."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bigvit.recipe.words import read_json

CIFAR100 = {
    "aquatic_mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food_containers": "bottle bowl can cup plate",
    "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
    "household_electrical_devices": "clock keyboard lamp telephone television",
    "household_furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large_carnivores": "bear leopard lion tiger wolf",
    "large_man-made_outdoor_things": "bridge castle house road skyscraper",
    "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
    "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium_mammals": "fox porcupine possum raccoon skunk",
    "non-insect_invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small_mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles_1": "bicycle bus motorcycle pickup_truck train",
    "vehicles_2": "lawn_mower rocket streetcar tank tractor",
}
"""CIFAR-100's coarse classes and their fine ones, named as its binary version names them."""


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
    return coarser_level(read_map(path), classes, f"--classes-map {path}")


def cifar100_level(classes: Sequence[str]) -> Level:
    """CIFAR-100's 20 coarse classes, numbered as its files number them.

    Raises:
        ValueError: a class is none of its fine ones.
    """
    coarser = {fine: name for name, all in CIFAR100.items() for fine in all.split()}
    return coarser_level(coarser, classes, "CIFAR-100's coarse classes")


def coarser_level(coarser: Mapping[str, str], classes: Sequence[str], said_by: str) -> Level:
    """The level that a mapping from class to coarser class says, whose classes are those of any
    class here, in the order of their names.

    Args:
        said_by: what the mapping is called in a message.

    Raises:
        ValueError: it lacks a class.
    """
    if missing := [name for name in classes if name not in coarser]:
        raise ValueError(
            f"{said_by}: it lacks {len(missing):,} of {len(classes):,} classes "
            f"({', '.join(missing[:3])}{', ...' * (len(missing) > 3)}); add them"
        )
    names = sorted({coarser[name] for name in classes})
    number = {name: place for place, name in enumerate(names)}
    return Level(names, [number[coarser[name]] for name in classes])


def read_map(path: Path, flag: str = "--classes-map") -> dict[str, str]:
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
        raise ValueError(f"{flag} {path}: cannot be read ({reason})") from None
    if not isinstance(found, dict) or not all(type(each) is str for each in found.values()):
        raise ValueError(
            f'{flag} {path}: must hold an object {{"class": "coarser class", ...}}, or be '
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
