"""The `bigvit` command. `list`, `show` and the help import neither torch nor tyro."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bigvit import __version__


def main(args: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, or 2 for bad input."""
    try:
        try:
            options = _parser().parse_args(args)
            options.run(options)
        finally:
            sys.stdout.flush()  # here, where a closed pipe is noticed: `bigvit list | head`
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigvit",
        description="Train large Vision Transformers by named recipes: "
        "deepspeed scripts/train.py RECIPE starts a training, these commands do the rest.",
    )
    parser.add_argument("--version", action="version", version=f"bigvit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: object, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        return command

    add("list", _list, "name every recipe, with its model's size, resolution and source")
    command = add("show", _show, "print every value of a recipe")
    command.add_argument("recipe", help="a name, or FILE.py[:NAME]")
    command.add_argument("--json", action="store_true", help="as JSON, as recipe.json holds it")
    command = add("diff", _diff, "print where two recipes differ")
    command.add_argument("first", help="a name, or FILE.py[:NAME]")
    command.add_argument("second", help="a name, or FILE.py[:NAME]")
    command = add("samples", _samples, "draw a training batch as the model sees it")
    command.add_argument("recipe", help="a name, or FILE.py[:NAME]")
    command.add_argument("--data-root", help="where the data set is")
    command.add_argument("--batch", type=int, default=0, help="number of the global batch")
    command.add_argument("--count", type=int, default=32, help="images drawn (default 32)")
    command.add_argument("--out", type=Path, default=Path("samples.png"), help="picture to write")
    command = add("evaluate", _evaluate, "count what a checkpoint gets right on the test images")
    command.add_argument("path", type=Path, help="a run folder (its newest checkpoint), or one")
    command.add_argument("--batch-size", type=int, default=64, help="images at once (default 64)")
    command = add("export", _export, "write a checkpoint's weights as a folder that timm loads")
    command.add_argument("path", type=Path, help="a run folder (its newest checkpoint), or one")
    command.add_argument("--out", type=Path, help="folder to write (default: export/ of the run)")
    return parser


def _list(options: argparse.Namespace) -> None:
    from bigvit.recipe.find import all_recipes

    rows = [("name", "model", "parameters", "pixels", "source")]
    for name, recipe in all_recipes().items():
        model, size = recipe.model, recipe.data.image_size
        shape = f"{type(model).__name__} {model.embed_dim}/{model.depth}/{model.num_heads}"
        parameters = f"{model.parameters(size) / 1e6:.2f} M"
        rows.append(
            (name, f"{shape}, patch {model.patch_size}", parameters, str(size), recipe.source)
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _show(options: argparse.Namespace) -> None:
    from bigvit.recipe.check import leaves
    from bigvit.recipe.find import find_recipe
    from bigvit.recipe.store import to_json

    name, recipe = find_recipe(options.recipe)
    if options.json:
        print(json.dumps(to_json(recipe), indent=2))
        return
    model, size = recipe.model, recipe.data.image_size
    kinds = ", ".join(type(objective).__name__ for objective in recipe.objectives)
    rows = [
        ("name", name),
        (
            "kinds",
            f"{type(model).__name__}, {type(recipe.data).__name__}, {kinds}, "
            f"{type(recipe.optim).__name__}, {type(recipe.schedule).__name__}",
        ),
        ("parameters", f"{model.parameters(size):,}"),
        ("multiply-accumulates", f"{model.macs(size) / 1e9:.4g} G an image"),
        (
            "updates",
            f"{recipe.updates:,} ({recipe.updates_per_epoch:,} an epoch; "
            f"{recipe.data.train_images % recipe.batch_size:,} of {recipe.data.train_images:,} "
            "slots are left over)",
        ),
        *((path, value) for path, value in leaves(recipe)),
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


def _samples(options: argparse.Namespace) -> None:
    from bigvit.data.check import check_data
    from bigvit.recipe import Run
    from bigvit.recipe.find import find_recipe

    _, recipe = find_recipe(options.recipe)
    if not 0 <= options.batch < recipe.updates:
        raise ValueError(f"--batch: {options.batch} is not one of 0 to {recipe.updates - 1}")
    if options.count < 1:
        raise ValueError(f"--count: {options.count} is not allowed; it must be at least 1")
    run = Run(data_root=options.data_root)
    check_data(recipe.data, run)
    from bigvit.samples import draw_samples

    draw_samples(recipe, run, options.batch, options.count, options.out)
    print(options.out)


def _evaluate(options: argparse.Namespace) -> None:
    if options.batch_size < 1:
        raise ValueError(
            f"--batch-size: {options.batch_size} is not allowed; it must be at least 1"
        )
    from bigvit.checkpoint.folder import find_checkpoint

    checkpoint = find_checkpoint(options.path)
    from bigvit.evaluate import evaluate_checkpoint

    print(json.dumps(evaluate_checkpoint(checkpoint, options.batch_size), indent=2))


def _export(options: argparse.Namespace) -> None:
    from bigvit.checkpoint.folder import find_checkpoint

    checkpoint = find_checkpoint(options.path)
    folder = options.out or checkpoint.parent.parent / "export"
    if folder.exists() and not (folder / "config.json").is_file():
        raise ValueError(
            f"--out {folder}: it holds something that is not an export; choose another"
        )
    from bigvit.export import export

    try:
        print(export(checkpoint, folder))
    except OSError as error:
        raise ValueError(f"--out {folder} cannot be written: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
