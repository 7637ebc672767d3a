"""Whether a recipe's data are there, asked before anything heavy is loaded."""

from collections.abc import Iterator
from pathlib import Path

from bigvit.data.label_maps.maps import LabelMaps
from bigvit.data.sources import Source, digits, find_level, matched, open_own
from bigvit.recipe import Data, Detection, Digits, Images, Recipe, Run, Segmentation


def check_data(data: Data, run: Run) -> None:
    """Raise ValueError unless the data can be read. What was listed here is not listed again.

    Raises:
        ValueError: says what was looked for, and where to put it; or all in which the data are not
            the recipe's, with the options that would make it theirs.
    """
    _check_level(data, run)
    match data:
        case Digits():
            if run.data_root is not None:
                raise ValueError("--data-root: the digits come with scikit-learn; leave it out")
            digits.refuse_missing()
        case Segmentation() | Detection():
            root = run.data_root
            train = open_own(data, "train", root)
            test = open_own(data, "test", root) if data.tested else None
            _compare(data, train, test, len(train.classes), root)
        case Images():
            root = run.data_root
            train = open_own(data, "train", root)
            test = open_own(data, "test", root) if data.tested else None
            level = find_level(data.level, train.classes, root, run.classes_map)
            _compare(data, train, test, len(level.classes), root)


def _check_level(data: Data, run: Run) -> None:
    """Refuse a map of classes that the recipe asks for none of, and its lack where it does."""
    if data.level != "map" and run.classes_map is not None:
        raise ValueError(
            f"--classes-map {run.classes_map}: this recipe tells classes apart at the level "
            f"{data.level} (data.level); leave it out"
            + ", or add --data.level map"
            * isinstance(data, Images)
        )
    if data.level == "map":
        find_level("map", (), None, run.classes_map)


def check_maps(recipe: Recipe, folder: Path | None, name: str) -> None:
    """Raise ValueError unless label maps are given to a recipe that learns from some, and to no
    other; they are opened, and not read.

    Args:
        name: of the recipe.
    """
    if not recipe.maps:
        if folder is not None:
            raise ValueError(
                f"--label-maps {folder}: {name} learns from no label maps; leave it out"
            )
    elif folder is None:
        raise ValueError(
            f"{name} learns from label maps; make them by `bigvit label-maps`, and give their "
            "folder by --label-maps"
        )
    else:
        LabelMaps(folder)


def _compare(
    data: Images | Segmentation | Detection,
    train: Source,
    test: Source | None,
    classes: int,
    root: Path | None,
) -> None:
    """Refuse data that are not of the recipe's numbers.

    Args:
        classes: at the recipe's level.
    """
    found = list(_mismatches(data, train, test, classes))
    if found:
        said = "; ".join(what for what, _ in found)
        options = " ".join(how for _, how in found if how)
        mend = f". Are these the data that are meant? Then add {options}" if options else ""
        raise ValueError(f"--data-root {root}: {said}{mend}")


def _mismatches(
    data: Images | Segmentation | Detection, train: Source, test: Source | None, count: int
) -> Iterator[tuple[str, str]]:
    """What of the data is not as the recipe says, and the option that says it as it is."""

    def compared(
        split: str, what: str, here: int, there: int | None, *options: str
    ) -> Iterator[tuple[str, str]]:
        if there not in (None, here):
            field = options[0].replace("-", "_")
            said = f"{split} has {here:,} {what}, but {data.dataset} has {there:,} in the recipe"
            yield f"{said} ({field})", " ".join(f"--{option} {here}" for option in options)

    classes = "data.classes", "model.num-classes"
    yield from compared("train", "images", len(train), data.train_images, "data.train-images")
    yield from compared("train", "classes", count, data.classes, *classes)
    if test is None:
        return
    yield from compared("test", "images", len(test), data.test_images, "data.test-images")
    try:
        matched(test, train)
    except ValueError as error:
        yield str(error), ""
