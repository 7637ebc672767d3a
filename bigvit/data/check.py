"""Whether a recipe's data are there, asked before anything heavy is loaded."""

from collections.abc import Iterator
from pathlib import Path

from bigvit.data.sources import Source, matched, open_source
from bigvit.recipe import Data, Digits, Images, Run


def check_data(data: Data, run: Run) -> None:
    """Raise ValueError unless the data can be read. What was listed here is not listed again.

    Raises:
        ValueError: says what was looked for, and where to put it; or all in which the data are not
            the recipe's, with the options that would make it theirs.
    """
    match data:
        case Digits():
            if run.data_root is not None:
                raise ValueError("--data-root: the digits come with scikit-learn; leave it out")
        case Images():
            root = run.data_root
            train = open_source(data, "train", root)
            test = open_source(data, "test", root) if data.tested else None
            _compare(data, train, test, root)


def _compare(data: Images, train: Source, test: Source | None, root: Path | None) -> None:
    """Refuse data that are not of the recipe's numbers."""
    found = list(_mismatches(data, train, test))
    if found:
        said = "; ".join(what for what, _ in found)
        options = " ".join(how for _, how in found if how)
        mend = f". Are these the data that are meant? Then add {options}" if options else ""
        raise ValueError(f"--data-root {root}: {said}{mend}")


def _mismatches(data: Images, train: Source, test: Source | None) -> Iterator[tuple[str, str]]:
    """What of the data is not as the recipe says, and the option that says it as it is."""

    def text(split: str, here: int, what: str, there: int, field: str) -> str:
        return (
            f"{split} has {here:,} {what}, but {data.dataset} has {there:,} in the recipe "
            f"(data.{field})"
        )

    images, classes = len(train), len(train.classes)
    if images != data.train_images:
        said = text("train", images, "images", data.train_images, "train_images")
        yield said, f"--data.train-images {images}"
    if classes != data.classes:
        said = text("train", classes, "classes", data.classes, "classes")
        yield said, f"--data.classes {classes} --model.num-classes {classes}"
    if test is None:
        return
    if data.test_images not in (None, len(test)):
        said = text("test", len(test), "images", data.test_images or 0, "test_images")
        yield said, f"--data.test-images {len(test)}"
    try:
        matched(test, train)
    except ValueError as error:
        yield str(error), ""
