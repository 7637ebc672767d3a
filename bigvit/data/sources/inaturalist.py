"""iNaturalist 2018 and 2019 as they are given out: train2018.json and val2018.json, in COCO's form,
list images that lie in train_val2018/SUPERCATEGORY/CATEGORY/ beside them. A list that names a file
elsewhere (an absolute path, or one with `..`) is refused."""

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bigvit.data.sources.folders import FileNames, FileSource, is_below, shown
from bigvit.data.sources.source import Split

RANKS = ("kingdom", "phylum", "class", "order", "family", "genus")
NAMED = "categories.json"  # names and ranks of the categories, where the lists lack them
LISTS = {"train": "train20[0-9][0-9].json", "test": "val20[0-9][0-9].json"}


def find_lists(root: Path) -> bool:
    """Whether iNaturalist's list of a split is there."""
    return any(any(root.glob(name)) for name in LISTS.values())


def open_lists(root: Path, split: Split) -> FileSource:
    """The images of a split, in the order of (category number, file name).

    Raises:
        ValueError: there is no list of it, or several; or it is damaged, names a file elsewhere, or
            its images are not there.
    """
    found = sorted(root.glob(LISTS[split]))
    if len(found) != 1:
        there = ", ".join(file.name for file in found) or "none"
        raise ValueError(
            f"one {LISTS[split].replace('[0-9][0-9]', 'YY')} is needed, but "
            f"there is {there}; keep one year in a folder"
        )
    file = found[0]
    try:
        with file.open("rb") as opened:
            listed = json.load(opened, object_hook=_needed)
        category_of: dict[Any, int] = dict(listed["annotations"])
        numbers = sorted(listed.get("categories") or {(n, n) for n in category_of.values()})
        class_of = {number: index for index, (number, _) in enumerate(numbers)}
        images = sorted((class_of[category_of[id]], name) for id, name in listed["images"])
        names = [os.fsencode(name) for _, name in images]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{file.name} is damaged, or not iNaturalist's list of images, annotations and "
            f"categories ({type(error).__name__}: {error}); get it again"
        ) from None
    if strange := next((name for name in names if not is_below(name)), None):
        raise ValueError(
            f"{file.name} names a file outside of it, {shown(strange)!r}; names must lead from "
            "that folder down"
        )
    first = os.path.dirname(names[0]) if names else b"none"
    if not names or not os.path.isdir(os.path.join(os.fsencode(root), first)):
        raise ValueError(
            f"the images that {file.name} lists ({shown(first)}/...) are not there; unpack them "
            "beside it"
        )
    targets = np.array([target for target, _ in images], np.int32)
    return FileSource(root, FileNames(names), targets, [str(name) for _, name in numbers])


@lru_cache(maxsize=1)
def ranks_of(root: Path) -> dict[str, dict[str, str]]:
    """Of each class, by its name in the lists, the group that it belongs to by rank (`RANKS`): as
    the list of training images says it, or categories.json beside it, which was given out where
    those hide the names.

    Raises:
        ValueError: none of them says it, or it is damaged.
    """
    lists = [file for name in LISTS.values() for file in sorted(root.glob(name))]
    if not lists:
        raise ValueError(f"there is no {LISTS['train'].replace('[0-9][0-9]', 'YY')}")
    file = lists[0]
    try:
        with file.open("rb") as opened:
            listed = json.load(opened, object_hook=_category)
        names = {number: str(name) for number, name, _ in listed["categories"]}
        ranks = {number: of for number, _, of in listed["categories"]}
        if (named := root / NAMED).is_file() and not all(ranks.values()):
            file = named
            with file.open("rb") as opened:
                said = json.load(opened)
            ranks = {each.get("id", i): _ranks(each) for i, each in enumerate(said)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{file.name} is damaged, or says no categories ({type(error).__name__}: {error}); "
            "get it again"
        ) from None
    if missing := [name for number, name in names.items() if not ranks.get(number)]:
        raise ValueError(
            f"{file.name} does not say the {', '.join(RANKS)} of {len(missing):,} of "
            f"{len(names):,} categories ({missing[0]!r}, ...); lay iNaturalist's {NAMED} beside it"
        )
    return {name: ranks[number] for number, name in names.items()}


def _category(item: dict[str, Any]) -> Any:
    """What is needed of a category: number, name and ranks. Of images and annotations nothing."""
    if "file_name" in item or "category_id" in item:
        return None
    if "name" in item and "id" in item:
        return item["id"], item["name"], _ranks(item)
    return item


def _ranks(item: dict[str, Any]) -> dict[str, str]:
    """A category's ranks; none, where one is missing."""
    found = {rank: item[rank] for rank in RANKS if isinstance(item.get(rank), str)}
    return found if len(found) == len(RANKS) else {}


def _needed(item: dict[str, Any]) -> Any:
    """What is needed of an image, annotation or category: the rest would be gigabytes."""
    if "file_name" in item:
        return item["id"], item["file_name"]
    if "category_id" in item:
        return item["image_id"], item["category_id"]
    if "name" in item and "id" in item:
        return item["id"], item["name"]
    return item
