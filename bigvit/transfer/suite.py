"""Which recipes tune a model on which data sets. No torch here.

Recipes are named by a pattern, such as `deit3_b16_in1k_224_ft_*`, in which * stands for the name of
a data set.
"""

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from bigvit.checkpoint.run import run_folder_of
from bigvit.recipe.find import all_recipes, recipes_in
from bigvit.recipe.words import read_json

MARK = "*"
DATASETS = (
    *("cifar10", "cifar100", "flowers102", "cars196", "inat18", "inat19", "food101", "pets"),
    *("svhn", "clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    "parity",  # of the digits, which are bundled
)
"""The data sets of recipes for transfer, as their names call them."""


class Part(NamedTuple):
    """A data set of a suite."""

    name: str
    recipe: str  # as `find_recipe` takes it
    root: str | None  # where its data are; None: they are bundled


class Figure(NamedTuple):
    """What a paper says."""

    top1: float  # percent
    source: str  # the paper's table


def pattern_of(run: str) -> str:
    """The recipes that start from a run's, by the name of that in its folder.

    Args:
        run: what is transferred: a run folder, a checkpoint in one, or anything else.

    Raises:
        ValueError: there are none, or more than one for each data set.
    """
    name = _recipe_of(run)
    mend = "say by --recipes which recipes tune it, such as 'deit3_b16_in1k_224_ft_*'"
    if name is None:
        raise ValueError(f"{run}: no run folder says which recipe these weights are of; {mend}")
    found: dict[str, None] = {}
    for other, recipe in all_recipes().items():
        words = other.split("_")
        if recipe.starts_from == name and (at := [w for w in words if w in DATASETS]):
            found["_".join(MARK if word in at else word for word in words)] = None
    if (usual := f"{name}_ft_{MARK}") in found:
        return usual
    if len(found) == 1:
        return next(iter(found))
    if not found:
        raise ValueError(f"{run}: no recipe on another data set starts from {name}; {mend}")
    raise ValueError(f"{run}: recipes {', '.join(found)} start from {name}; choose by --recipes")


def _recipe_of(run: str) -> str | None:
    try:
        name = read_json(run_folder_of(Path(run)) / "recipe.json")["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return name if type(name) is str else None


def recipes_of(pattern: str) -> dict[str, str]:
    """The recipes of a pattern, as `find_recipe` takes them, by the data set's name in them.

    Args:
        pattern: of bigvit's recipes, or FILE.py or FILE.py:PATTERN of those of a file.

    Raises:
        ValueError: it has not one *, or there are none.
    """
    path, _, inner = pattern.partition(":")
    of_file = path.endswith(".py")
    if of_file:
        known, before, wanted = recipes_in(Path(path)), f"{path}:", inner or MARK
    else:
        known, before, wanted = all_recipes(), "", pattern
    if wanted.count(MARK) != 1:
        raise ValueError(f"--recipes {pattern}: it must have one {MARK}, where data sets differ")
    first, last = wanted.split(MARK)
    names = [
        name
        for name in known
        if name.startswith(first) and name.endswith(last) and len(name) > len(first + last)
    ]
    if not names:
        where = path if of_file else "bigvit"
        raise ValueError(
            f"--recipes {pattern}: no recipe of {where} has such a name; `bigvit list`"
        )
    return {name[len(first) : len(name) - len(last)]: f"{before}{name}" for name in names}


def parts_of(pattern: str, given: Sequence[str]) -> tuple[list[Part], list[str]]:
    """The data sets that are given, and folders that are none.

    Args:
        given: NAME=FOLDER each, the NAME alone of bundled data, or a folder whose folders have
            data sets' names.

    Raises:
        ValueError: one is unknown, not there, or given twice.
    """
    known = recipes_of(pattern)
    found: dict[str, Part] = {}
    left: list[str] = []

    def take(name: str, root: str | None, word: str) -> None:
        if name not in known:
            listed = ", ".join(sorted(known))
            raise ValueError(
                f"--data-root {word}: no recipe {pattern} is of a data set {name!r}; there are "
                f"{listed}"
            )
        if name in found:
            raise ValueError(f"--data-root {word}: {name} is given twice; give it once")
        if root is not None and not root.startswith("hf:") and not Path(root).is_dir():
            raise ValueError(f"--data-root {word}: there is no folder {root}")
        found[name] = Part(name, known[name], root)

    for word in given:
        name, equals, root = word.partition("=")
        if equals and "/" not in name:
            take(name, root, word)
        elif (folder := Path(word)).is_dir():
            inside = sorted(each.name for each in folder.iterdir() if each.is_dir())
            if not set(inside) & known.keys():
                raise ValueError(
                    f"--data-root {word}: none of its folders has a data set's name "
                    f"({', '.join(sorted(known))}); rename or link them, or give NAME=FOLDER"
                )
            for each in inside:
                if each in known:
                    take(each, str(folder / each), word)
                else:
                    left.append(str(folder / each))
        elif word in known:
            take(word, None, word)
        else:
            raise ValueError(f"--data-root {word}: there is no such folder; give NAME=FOLDER")
    return list(found.values()), left


def published_for(recipe: str) -> Figure | None:
    """A paper's figure for one of bigvit's recipes."""
    for table in _published()["tables"]:
        for name, top1 in table["top1"].items():
            if table["recipes"].replace(MARK, name) == recipe:
                return Figure(top1, table["source"])
    return None


@cache
def _published() -> dict[str, Any]:
    return json.loads((files("bigvit.transfer") / "published.json").read_text())
