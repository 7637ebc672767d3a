"""Commands about recipes."""

import argparse
import json
from dataclasses import is_dataclass

from bigvit.cli.arguments import A_RECIPE, Add
from bigvit.cli.table import print_table


def add(add: Add) -> None:
    """Add the commands."""
    add("list", _list, "name every recipe, with its model's size, resolution and source")
    command = add("show", _show, "print every value of a recipe")
    command.add_argument("recipe", help=A_RECIPE)
    command.add_argument("--json", action="store_true", help="as JSON, as recipe.json holds it")
    command = add("diff", _diff, "print where two recipes differ")
    command.add_argument("first", help=A_RECIPE)
    command.add_argument("second", help=A_RECIPE)


def _list(options: argparse.Namespace) -> None:
    from bigvit.recipe.find import all_recipes

    rows: list[tuple[str, ...]] = []
    for name, recipe in all_recipes().items():
        model, size = recipe.model, recipe.data.image_size
        kind = f"{type(model).__name__} {model.summary}"
        parameters = f"{model.parameters(size) / 1e6:.2f} M"
        pixels = f"{size[0]}x{size[1]}" if isinstance(size, tuple) else str(size)
        rows.append((name, kind, parameters, pixels, recipe.source))
    print_table(("name", "model", "parameters", "pixels", "source"), rows)


def _show(options: argparse.Namespace) -> None:
    from bigvit.recipe.check import check_recipe, leaves
    from bigvit.recipe.find import find_recipe
    from bigvit.recipe.store import to_json

    name, recipe = find_recipe(options.recipe)
    check_recipe(recipe)
    if options.json:
        print(json.dumps(to_json(recipe), indent=2))
        return
    model, data = recipe.model, recipe.data
    parts = (
        *(model, *(part for part in vars(model).values() if is_dataclass(part))),
        *(data, *recipe.objectives, recipe.optim, recipe.schedule),
    )
    teacher = recipe.teacher
    left_over = data.train_images % recipe.batch_size
    rows = [
        ("name", name),
        ("kinds", ", ".join(type(part).__name__ for part in parts)),
        *([] if teacher is None else [("teacher", type(teacher.model).__name__)]),
        ("parameters", f"{model.parameters(data.image_size):,}"),
        ("multiply-accumulates", f"{model.macs(data.image_size) / 1e9:.4g} G an image"),
        (
            "updates",
            f"{recipe.updates:,} ({recipe.updates_per_epoch:,} an epoch; "
            f"{left_over:,} of {data.train_images:,} slots are left over)",
        ),
        *leaves(recipe),
    ]
    width = max(len(path) for path, _ in rows)
    for path, value in rows:
        print(f"{path.ljust(width)}  {value}")


def _diff(options: argparse.Namespace) -> None:
    from bigvit.recipe.find import find_recipe
    from bigvit.recipe.store import differences, to_json

    (_, first), (_, second) = find_recipe(options.first), find_recipe(options.second)
    for line in differences(to_json(first), to_json(second)):
        print(line)
