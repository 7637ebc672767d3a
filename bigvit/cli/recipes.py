"""Commands about recipes."""

import argparse
import difflib
import fnmatch
import json
from dataclasses import is_dataclass

from bigvit.cli.arguments import A_RECIPE, Add
from bigvit.cli.table import print_table
from bigvit.recipe import Recipe
from bigvit.recipe.bounds import Side

KEYS = ("name", "kind", "model", "parameters", "image_size", "data", "source", "paper")
"""What `bigvit list --json` says of a recipe."""


def add(add: Add) -> None:
    """Add the commands."""
    text = "name recipes, with their models' sizes, resolutions and sources"
    command = add("list", _list, text)
    text = "only those whose names hold this, or match it (deit3_*_384)"
    command.add_argument("pattern", nargs="?", help=text)
    command.add_argument("--model", help="only those of a kind of model: ViT, CaiT, Swin, ...")
    command.add_argument("--data", help="only those whose data set's name holds this: 21k, CIFAR")
    command.add_argument("--image-size", number=Side, help="only those at this resolution")
    command.add_argument("--json", action="store_true", help="as a list of JSON objects")
    command = add("show", _show, "print every value of a recipe")
    command.add_argument("recipe", help=A_RECIPE)
    command.add_argument("--json", action="store_true", help="as JSON, as recipe.json holds it")
    command = add("diff", _diff, "print where two recipes differ")
    command.add_argument("first", help=A_RECIPE)
    command.add_argument("second", help=A_RECIPE)


def _list(options: argparse.Namespace) -> None:
    from bigvit.plan.weights import size_of
    from bigvit.recipe import sides
    from bigvit.recipe.find import all_recipes, by_paper

    papers = {name: paper for paper, names in by_paper().items() for name in names}
    groups: dict[int, str] = {}
    counted: dict[object, int] = {}
    rows: list[tuple[str, ...]] = []
    found: list[dict[str, object]] = []
    for name, recipe in all_recipes().items():
        model, size = recipe.model, recipe.data.image_size
        kind = type(model).__name__
        data = getattr(recipe.data, "dataset", "digits")
        wanted = (
            _holds(name, options.pattern),
            options.model is None or kind.lower() == options.model.lower(),
            options.data is None or options.data.lower() in data.lower(),
            options.image_size in (None, *(sides(size) if isinstance(size, tuple) else (size,))),
        )
        if not all(wanted):
            continue
        if (key := (model, size, recipe.dense)) not in counted:  # many recipes train one model
            counted[key] = size_of(recipe).parameters
        parameters, paper = counted[key], papers[name]
        if paper not in groups.values():
            groups[len(rows)] = paper
        pixels = f"{size[0]}x{size[1]}" if isinstance(size, tuple) else str(size)
        cells = recipe.summary, f"{parameters / 1e6:.2f} M", pixels, recipe.source
        rows.append((name, *cells))
        values = (name, kind, model.summary, parameters, list(sides(size)), data)
        found.append(dict(zip(KEYS, (*values, recipe.source, paper), strict=True)))
    if options.json:
        print(json.dumps(found, indent=2))
    elif rows:
        print_table(("name", "model", "parameters", "pixels", "source"), rows, groups)
    else:
        raise ValueError(_none_of(options))


def _holds(name: str, pattern: str | None) -> bool:
    """Whether a name holds a pattern, or matches one with * or ?."""
    return pattern is None or pattern in name or fnmatch.fnmatchcase(name, pattern)


def _none_of(options: argparse.Namespace) -> str:
    """What to say where nothing is left."""
    from bigvit.recipe.find import all_recipes

    recipes = all_recipes()
    kinds = sorted({type(recipe.model).__name__ for recipe in recipes.values()})
    if options.model is not None and options.model.lower() not in map(str.lower, kinds):
        return f"--model {options.model}: there is none; the kinds are {', '.join(kinds)}"
    near = difflib.get_close_matches(options.pattern or "", recipes, n=3, cutoff=0.5)
    hint = f"; the nearest names are {', '.join(near)}" if near else ""
    return f"no recipe is like that{hint}; `bigvit list` alone names all"


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
        *([] if recipe.dense is None else [("its dense head", _head(recipe))]),
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


def _head(recipe: Recipe) -> str:
    """What a head computes that answers in the place of the model's own."""
    from bigvit.plan.weights import head_of

    parameters, macs = head_of(recipe)
    return f"{parameters:,} parameters, {macs / 1e9:.4g} G multiply-accumulates an image"


def _diff(options: argparse.Namespace) -> None:
    from bigvit.recipe.find import find_recipe
    from bigvit.recipe.store import differences, to_json

    (_, first), (_, second) = find_recipe(options.first), find_recipe(options.second)
    for line in differences(to_json(first), to_json(second)):
        print(line)
