"""Commands that draw what a model sees, and what it has learned."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from bigvit.cli import arguments
from bigvit.recipe.bounds import Batch, Depth, LengthFrom0, Pairs, Side


def add(add: arguments.Add) -> None:
    """Add the commands."""
    command = add("samples", _samples, "draw a training batch as the model sees it")
    command.add_argument("recipe", help=arguments.A_RECIPE)
    arguments.add_data_root(command)
    arguments.add_classes_map(command)
    text = "number of the global batch"
    command.add_argument("--batch", number=LengthFrom0, default=0, help=text)
    text = "images drawn (default: 32, or the batch where it is smaller)"
    command.add_argument("--count", number=Batch, help=text)
    arguments.add_image_size(command)
    text = "folder of the label maps that the recipe learns from, drawn beside the images"
    command.add_argument("--label-maps", type=Path, help=text)
    command.add_argument("--out", type=Path, default=Path("samples.png"), help="picture to write")
    command = add(
        "offsets", _offsets, "draw where a localization head sees tokens, and where they are"
    )
    arguments.add_run_or_one(command)
    command.add_argument("images", type=Path, nargs="*", help="image files (default: test images)")
    command.add_argument("--count", number=Batch, default=4, help="test images drawn (default 4)")
    command.add_argument("--pairs", number=Pairs, default=64, help="pairs an image (default 64)")
    arguments.add_data_root(command, arguments.OF_THE_RUN)
    command.add_argument("--out", type=Path, default=Path("offsets.png"), help="picture to write")
    command = add(
        "attention",
        _attention,
        "picture what a class token, or a pooling query, attends to in images",
    )
    arguments.add_run_or_one(command)
    command.add_argument("images", type=Path, nargs="+", help="image files")
    command.add_argument(
        "--out", type=Path, help="folder to write (default: attention/ of the run)"
    )
    command.add_argument("--layers", number=Depth, help="the last so many (default: at most 2)")
    text = "of a query a class, the most probable classes shown (default 3)"
    command.add_argument("--classes", number=Depth, help=text)
    arguments.add_image_size(command)
    arguments.add_ema(command)
    arguments.add_dispatch(command)
    command = add("branches", _branches, "measure residual branches beside the main branch")
    command.add_argument("paths", type=Path, nargs="+", help="run folders, or checkpoints")
    command.add_argument("--images", number=Batch, default=64, help="test images used (default 64)")
    arguments.add_data_root(command, arguments.OF_THE_RUN)
    command.add_argument("--out", type=Path, default=Path("branches.png"), help="picture to write")
    command = add("patches", _patches, "picture what ResMLP has learned across patches")
    command.add_argument("paths", type=Path, nargs="+", help="run folders, or checkpoints")
    text = "rows of a matrix, as many down as across: those of the central patches (default 6)"
    command.add_argument("--side", number=Side, default=6, help=text)
    arguments.add_ema(command)
    text = "folder to write (default: patches/ of the first run)"
    command.add_argument("--out", type=Path, help=text)


def _samples(options: argparse.Namespace) -> None:
    from bigvit.data.check import check_data, check_maps
    from bigvit.recipe import Run
    from bigvit.recipe.check import check_recipe
    from bigvit.recipe.find import find_recipe

    name, recipe = find_recipe(options.recipe)
    if (size := arguments.size_of(options)) is not None:
        recipe = replace(recipe, data=replace(recipe.data, image_size=size))
    check_recipe(recipe)
    if not 0 <= options.batch < recipe.updates:
        raise ValueError(f"--batch: {options.batch} is not one of 0 to {recipe.updates - 1}")
    count = min(32, recipe.batch_size) if options.count is None else options.count
    if not 1 <= count <= recipe.batch_size:
        raise ValueError(
            f"--count: {count} is not allowed; a batch has 1 to {recipe.batch_size} images, "
            "--batch draws another one"
        )
    arguments.refuse_unwritable(options.out)
    options_of_run = ("data_root", "classes_map", "label_maps")
    run = Run(**{name: getattr(options, name) for name in options_of_run})
    check_data(recipe.data, run)
    check_maps(recipe, run.label_maps, name)
    from bigvit.visualize import drawing
    from bigvit.visualize.samples import draw_samples

    drawing.check(options.out)
    draw_samples(recipe, run, options.batch, count, options.out)
    print(options.out)


def _offsets(options: argparse.Namespace) -> None:
    arguments.refuse_no_checkpoint(options.path)
    from bigvit.visualize.offsets import draw_offsets, guess

    root = arguments.data_root_of(options, options.path)
    guesses = guess(options.path, options.images, options.count, options.pairs, root)
    draw_offsets(guesses, options.out)
    for each in guesses:
        print(f"{each.name}  off by {each.error:.3f} cells; the best constant by {each.blind:.3f}")
    print(options.out)


def _attention(options: argparse.Namespace) -> None:
    size, run = arguments.size_of(options), arguments.run_folder_of(options.path)
    arguments.refuse_memory_alone(options)
    arguments.refuse_no_checkpoint(options.path)
    from bigvit.visualize import attention_page
    from bigvit.visualize.attention import attention_maps

    if options.dispatch:
        from bigvit.checkpoint.dispatch import dispatched

        model = dispatched(options.path, options.memory, size, options.ema, precision="fp32")
    else:
        from bigvit.checkpoint.trained import trained

        model = trained(options.path, size, options.ema)
    found = attention_maps(model, options.images, options.layers, options.classes)
    title = f"{run.resolve().name}, {model.checkpoint.name}"
    print(attention_page.write(found, options.out or run / "attention", title))


def _branches(options: argparse.Namespace) -> None:
    for path in options.paths:
        arguments.refuse_no_checkpoint(path)
    from bigvit.visualize.branches import draw, ratios

    found = [
        each
        for path in options.paths
        for each in ratios(path, options.images, arguments.data_root_of(options, path))
    ]
    for each in found:
        print(json.dumps(each._asdict()))
    draw(found, options.out)
    print(options.out)


def _patches(options: argparse.Namespace) -> None:
    for path in options.paths:
        arguments.refuse_no_checkpoint(path)
    folder = options.out or arguments.run_folder_of(options.paths[0]) / "patches"
    from bigvit.visualize import patches_page
    from bigvit.visualize.patches import learned

    found = [learned(path, options.side, options.ema) for path in options.paths]
    for each in found:
        print(json.dumps({"run": each.run, "update": each.update, "sparsity": each.sparsity}))
    print(patches_page.write(found, folder))
