"""The command line of a training run: a recipe's name, then overrides. Imports tyro, no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, get_args, get_type_hints

import tyro

from bigvit.recipe.check import check_changes, check_recipe, check_run, check_training
from bigvit.recipe.find import find_recipe
from bigvit.recipe.recipe import Recipe
from bigvit.recipe.run import Command, Run
from bigvit.recipe.words import check_once, check_words

USAGE = "usage: deepspeed scripts/train.py RECIPE [--field.of.recipe VALUE] [--run-option VALUE]"


@dataclass(frozen=True)
class _Options:
    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    run: Annotated[Run, tyro.conf.arg(name="")]


def parse(args: Sequence[str], program: str = "train.py") -> Command:
    """Parse and check the arguments of `scripts/train.py`, the launcher's `--local_rank` included.

    Args:
        program: whose help is named where an option is wrong.

    Raises:
        ValueError: the recipe is unknown, or a value is not allowed.
        SystemExit: tyro refused an option (2), or printed the help (0).
    """
    rest = [arg for arg in args if not arg.startswith("--local_rank")]
    if not rest or rest[0] in ("-h", "--help"):
        print(f"{USAGE}\n`bigvit list` names the recipes; RECIPE --help lists every field.")
        raise SystemExit(0 if rest else 2)
    if rest[0].startswith("-"):
        raise ValueError(f"the first argument must be a recipe's name, not {rest[0]}; {USAGE}")
    check_words(rest)
    check_once(rest[1:])
    name, recipe = find_recipe(rest[0])
    options: Any = tyro.cli(
        tyro.conf.AvoidSubcommands[_Options],
        prog=f"{program} {rest[0]}",
        description=f"{name}: {recipe.source}.{_absent(recipe)}",
        default=_Options(recipe, Run()),
        args=rest[1:],
    )
    check_recipe(options.recipe)
    check_training(options.recipe)
    check_run(options.run)
    check_changes(options.run, options.recipe)
    return Command(name, options.recipe, options.run, tuple(rest[1:]))


def _absent(recipe: Recipe) -> str:
    """Parts that a recipe leaves out, which tyro gives no options to."""
    listed = ", ".join(f"{path} (default: {value})" for path, value in _parts_left_out(recipe, ""))
    return f" Left out here: {listed}; a recipe file of your own can add it." if listed else ""


def _parts_left_out(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Fields that may hold dataclasses, and hold none, with what they hold."""
    for name, kind in get_type_hints(type(value)).items():
        item, below = getattr(value, name), f"{path}{name}"
        # tuples of dataclasses, too
        if not item and any(is_dataclass(member) for member in get_args(kind)):
            yield below, item
        elif is_dataclass(item):
            yield from _parts_left_out(item, f"{below}.")
        elif isinstance(value, Recipe) and name == "objectives":
            for i, objective in enumerate(value.objectives):
                yield from _parts_left_out(objective, f"{below}.{i}.")
