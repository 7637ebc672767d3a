"""The arguments of the `bigvit` commands: each option once, each number within its bounds; and
those that several commands take, with what they mean."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn, get_args

from bigvit.recipe.bounds import Bound, Memory, Side, allow
from bigvit.recipe.words import check_words, read_json

Add = Callable[..., argparse.ArgumentParser]
"""Adds a command: its name, what runs it, a line of help."""

A_RECIPE = "a name, or FILE.py[:NAME]"
OF_THE_RUN = " (default: the run's)"


class Once(argparse.Action):
    """Stores an option's value, where argparse by itself would keep the last of two in silence."""

    def __init__(self, *args: Any, number: Any = None, **options: Any) -> None:
        """Args: number: the range of a number, as in a field's type; instead of `type`."""
        assert options.get("type") not in (int, float), "a number has a range: number=..."
        self.bound: Bound | None = None
        if number is not None:
            _, bound = get_args(number)
            self.bound, options["type"] = bound, type(bound.low)
        super().__init__(*args, **options)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given: set[str] = vars(namespace).setdefault("given_options", set())
        if option_string and self.dest in given:
            raise ValueError(f"{option_string} is given twice; give it once")
        given.add(self.dest)
        if self.bound is not None:
            for number in values if isinstance(values, list) else [values]:
                allow(str(option_string), number, self.bound.allows(number), str(self.bound))
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """A parser whose options are all `Once`; those of its commands are of its kind."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.register("action", None, Once)

    def error(self, message: str) -> NoReturn:
        """End with one line, without the usage above it."""
        self.exit(2, f"error: {message}; `{self.prog} --help` says what there is\n")

    def parse_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Sequence[str]
    ) -> argparse.Namespace:
        """What is given.

        Raises:
            ValueError: a word or number is not allowed; the message names its option.
        """
        if list(args[:1]) != ["launch"]:  # whose words are deepspeed's, and looked at there
            check_words(args)
        options, rest = super().parse_known_args(args)
        if "overrides" in options:
            options.overrides = rest
        elif rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return options


def add_run_or_one(command: argparse.ArgumentParser) -> None:
    text = "a run folder (its newest checkpoint), or one"
    command.add_argument("path", type=Path, help=text)


def add_data_root(command: argparse.ArgumentParser, default: str = "") -> None:
    """Add `--data-root`, whose help says the default."""
    command.add_argument("--data-root", type=Path, help=f"where the data set is{default}")


def add_image_size(command: argparse.ArgumentParser) -> None:
    text = "another resolution: side, or height and width, pixels"
    command.add_argument("--image-size", number=Side, nargs="+", metavar="PIXELS", help=text)


def add_ema(command: argparse.ArgumentParser) -> None:
    command.add_argument("--ema", action="store_true", help="the average of the weights instead")


def add_dispatch(command: argparse.ArgumentParser) -> None:
    text = (
        "for a model that is larger than a device's memory: read what does not fit when it is used"
    )
    command.add_argument("--dispatch", action="store_true", help=text)
    text = "of weights on each device, with --dispatch (default: what is free)"
    command.add_argument("--memory", number=Memory, metavar="GIB", help=text)


def refuse_memory_alone(options: argparse.Namespace) -> None:
    """Raise ValueError where `--memory` limits nothing."""
    if options.memory is not None and not options.dispatch:
        raise ValueError("--memory: it limits what --dispatch does; add that, or leave it out")


def size_of(options: argparse.Namespace) -> int | tuple[int, int] | None:
    """What `--image-size` says."""
    if (given := options.image_size) is None:
        return None
    if len(given) > 2:
        raise ValueError(f"--image-size: {given} is not one or two numbers of pixels")
    return given[0] if len(given) == 1 else (given[0], given[1])


def refuse_unwritable(path: Path, what: str = "--out") -> None:
    """Raise ValueError where a file cannot be made, before what goes into it is."""
    if path.is_dir():
        raise ValueError(f"{what} {path}: it is a folder; name a file")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{what} {path}: there is no folder {path.parent}; make it first")
    try:
        with TemporaryFile(dir=path.absolute().parent):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"{what} {path}: nothing can be written there ({reason})") from None


def run_folder_of(path: Path) -> Path:
    """The run folder that is meant, where a checkpoint of it may be named."""
    from bigvit.checkpoint.manifest import STEP
    from bigvit.checkpoint.run import run_named, run_of

    return run_of(path) if STEP.fullmatch(path.name) else run_named(path) or path


def data_root_of(options: argparse.Namespace, path: Path) -> Path | None:
    """Where `--data-root` says that the data are, or where the run found them."""
    if options.data_root is not None:
        return options.data_root
    described = run_folder_of(path) / "recipe.json"
    try:
        root = Path(read_json(described)["run"]["data_root"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if root == Path("None") else root


def refuse_no_checkpoint(path: Path) -> None:
    """Raise ValueError where there is nothing to read, before torch is imported."""
    from bigvit.checkpoint.run import find_checkpoints

    find_checkpoints(path, most=1)
