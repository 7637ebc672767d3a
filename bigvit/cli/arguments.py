"""The arguments of the `bigvit` commands: each option once, each number within its bounds; and
those that several commands take, with what they mean."""

import argparse
import difflib
import shutil
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn, get_args

from bigvit.recipe import Recipe
from bigvit.recipe.bounds import Bound, Memory, Side, allow
from bigvit.recipe.words import check_words, read_json

Add = Callable[..., argparse.ArgumentParser]
"""Adds a command: its name, what runs it, a line of help."""

A_RECIPE = "a name, or FILE.py[:NAME]"
SIZE = "--image-size"
ALONE = 4.0  # seconds after which rank 0 would have said what is wrong
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

    def __init__(self, groups: Mapping[str, Sequence[str]] | None = None, **options: Any) -> None:
        """Args: groups: names of commands, by the title that the help gives them."""
        self.groups = groups or {}
        self.commands: dict[str, Any] = {}  # parsers of the commands, by name
        self.arguments: list[argparse.Action] = []
        super().__init__(**options)
        self.register("action", None, Once)

    def add_argument(self, *names: Any, **more: Any) -> argparse.Action:
        action = super().add_argument(*names, **more)
        self.arguments.append(action)
        return action

    @property
    def options(self) -> dict[str, str]:
        """Its options, and what each means."""
        return {
            name: action.help or ""
            for action in self.arguments
            for name in action.option_strings
            if name.startswith("--")
        }

    def format_help(self) -> str:
        """The commands by their groups, where there are some."""
        if not self.commands:
            return super().format_help()
        width = max(60, shutil.get_terminal_size().columns - 2)
        grouped = {name for names in self.groups.values() for name in names}
        rest = [name for name in self.commands if name not in grouped]
        longest = max(map(len, self.commands)) + 6
        lines = [f"usage: {self.prog} COMMAND ...", ""]
        lines += [*textwrap.wrap(str(self.description), width), ""]
        for title, names in {**self.groups, **({"More": rest} if rest else {})}.items():
            lines.append(f"{title}:")
            for name in names:
                text = str(self.commands[name].description)
                first, *others = textwrap.wrap(text, width - longest)
                lines.append(f"    {name:<{longest - 4}}{first}")
                lines += [f"{'':<{longest}}{other}" for other in others]
            lines.append("")
        lines.append(f"`{self.prog} COMMAND --help` says what one takes; --version, which this is.")
        return "\n".join(lines) + "\n"

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
            args = _sizes_last(args)
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            self.error(f"there is no command {args[0]}{nearest(args[0], self.commands)}")
        options, rest = super().parse_known_args(args)
        if "overrides" in options:
            options.overrides = rest
        elif rest:
            known, wrong = options.command.options, next(filter(_is_option, rest), rest[0])
            hint = nearest(wrong.partition("=")[0], known) if _is_option(wrong) else ""
            options.command.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
        return options


def _sizes_last(words: Sequence[str]) -> Sequence[str]:
    """The words, `--image-size` and its numbers at the end: argparse would take what follows them,
    as a photograph's name, for another number."""
    if SIZE not in words:
        return words
    at = words.index(SIZE)
    numbers = list(takewhile(str.isdecimal, words[at + 1 :]))
    end = at + 1 + len(numbers)
    return [*words[:at], *words[end:], SIZE, *numbers] if numbers else words


def _is_option(word: str) -> bool:
    return word.startswith("-")


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: what may be meant, if anything is near."""
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    return f"; the nearest {'are' if len(near) > 1 else 'is'} {', '.join(near)}" if near else ""


def add_run_or_one(command: argparse.ArgumentParser) -> None:
    text = "a run folder (its newest checkpoint), or one"
    command.add_argument("path", type=Path, help=text)


def add_data_root(command: argparse.ArgumentParser, default: str = "") -> None:
    """Add `--data-root`, whose help says the default."""
    command.add_argument("--data-root", type=Path, help=f"where the data set is{default}")


def add_classes_map(command: argparse.ArgumentParser) -> None:
    text = "which coarser class each class is of, where the recipe's data.level is map"
    command.add_argument("--classes-map", type=Path, metavar="FILE", help=text)


def add_image_size(command: argparse.ArgumentParser) -> None:
    text = "another resolution: side, or height and width, pixels"
    command.add_argument(SIZE, number=Side, nargs="+", metavar="PIXELS", help=text)


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


def refuse_other_kind(path: Path, endings: Sequence[str], what: str = "--out") -> None:
    """Raise ValueError where a file is there that does not end as those do that are written."""
    if path.is_file() and path.suffix.lower() not in endings:
        raise ValueError(
            f"{what} {path}: it is there already, and is written over where it ends in "
            f"{' or '.join(endings)} alone; choose another name"
        )


def refused_once(error: Exception) -> int:
    """The exit code of a rank that meets bad input, which rank 0 says: it raises that again. What a
    host's ranks alone meet, the first of them says: then rank 0 has not ended them all by now."""
    from bigvit.ranks.launched import launched

    here = launched()
    if here.rank != 0:
        time.sleep(ALONE)  # the launcher ends all of its host once one has ended
    if here.local == 0:
        raise error
    time.sleep(ALONE)
    return 2


def run_folder_of(path: Path) -> Path:
    """The run folder that is meant, where a checkpoint of it may be named."""
    from bigvit.checkpoint.run import run_folder_of

    return run_folder_of(path)


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


def recipe_of(path: Path) -> Recipe:
    """The recipe of a checkpoint, or of a run folder's newest, before torch is imported.

    Raises:
        ValueError: there is nothing to read.
    """
    from bigvit.checkpoint.manifest import read_manifest
    from bigvit.checkpoint.run import find_checkpoints
    from bigvit.recipe.store import filled, recipe_from_json

    (checkpoint, *_) = find_checkpoints(path, most=1).whole
    # what an older bigvit meant is said where the checkpoint is read
    return recipe_from_json(filled(read_manifest(checkpoint).recipe))


def refuse_no_checkpoint(path: Path) -> None:
    """Raise ValueError where there is nothing to read, before torch is imported."""
    from bigvit.checkpoint.run import find_checkpoints

    find_checkpoints(path, most=1)
