"""Whether weights fit the models that are to start from them."""

from collections.abc import Mapping
from dataclasses import replace

from bigvit.checkpoint.weights import fitted, read_init
from bigvit.engines.build import outline
from bigvit.recipe import Command


def check_fit(of: str, commands: Mapping[str, Command]) -> None:
    """Read weights once, and try them on every recipe's model without memory.

    Args:
        of: what they are of, as it was named.
        commands: by the recipe; all have the same `--init`.

    Raises:
        ValueError: they cannot be read, or do not fit a recipe.
    """
    run = next(iter(commands.values())).run
    assert run.init is not None
    given = replace(read_init(run.init, run.init_ema, run.init_grid), origin=of)
    for name, command in commands.items():
        recipe = command.recipe
        fitted(given, outline(recipe).model, _grid(command), recipe.resampling, name)


def _grid(command: Command) -> tuple[int, int]:
    return command.recipe.model.grid(command.recipe.data.image_size)
