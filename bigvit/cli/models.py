"""Commands that read a trained model to count with it or to hand it on."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bigvit.cli import arguments
from bigvit.cli.table import print_table
from bigvit.recipe import Detection, Segmentation
from bigvit.recipe.bounds import Batch, CropRatio, Workers
from bigvit.recipe.scene import Factor


def add(add: arguments.Add) -> None:
    """Add the commands."""
    command = add("evaluate", _evaluate, "count what a checkpoint gets right on the test images")
    arguments.add_run_or_one(command)
    text = "images at once (default 64), or windows of images with a class a pixel (default 8)"
    command.add_argument("--batch-size", number=Batch, help=text)
    arguments.add_data_root(command, arguments.OF_THE_RUN)
    text = "processes that decode (default: by cores)"
    command.add_argument("--workers", number=Workers, help=text)
    arguments.add_image_size(command)
    command.add_argument("--crop-ratio", number=CropRatio, help="another crop ratio")
    command.add_argument("--labels", type=Path, help="ReaL's real.json: what counts as right")
    text = "factors of the recipe's sizes at which pixels' classes are averaged (default 1)"
    command.add_argument("--scales", number=Factor, nargs="+", help=text)
    text = "average them over mirrored images, too"
    command.add_argument("--flips", action="store_true", help=text)
    text = "picture to write: images, the classes of their pixels, and those predicted"
    command.add_argument("--pictures", type=Path, metavar="FILE", help=text)
    text = "images in the picture (default 8)"
    command.add_argument("--count", number=Batch, default=8, help=text)
    arguments.add_ema(command)
    arguments.add_dispatch(command)
    command = add("compare", _compare, "show where models differ on a test set, and which is right")
    text = "run folders or checkpoints, or timm:NAME (timm:local-dir:FOLDER for an export)"
    command.add_argument("model", metavar="MODEL", help=text)
    command.add_argument("models", nargs="+", metavar="OTHER", help="likewise")
    text = f"whose test set it is: {arguments.A_RECIPE} (default: of the first run)"
    command.add_argument("--recipe", help=text)
    text = "images at once (default 64)"
    command.add_argument("--batch-size", number=Batch, default=64, help=text)
    arguments.add_data_root(command, " (default: the first run's)")
    command.add_argument("--workers", number=Workers, help="processes that decode, of all")
    arguments.add_ema(command)
    text = "images in the picture (default 16)"
    command.add_argument("--count", number=Batch, default=16, help=text)
    command.add_argument("--out", type=Path, default=Path("compare.png"), help="picture to write")
    command.add_argument("--json", action="store_true", help="print all numbers")
    command = add("predict", _predict, "say what a model takes images for, a line each")
    text = "a run folder or checkpoint, an export's folder, or timm:NAME"
    command.add_argument("model", metavar="MODEL", help=text)
    text = "image files, and folders of them (default: the test images of --data-root)"
    command.add_argument("images", type=Path, nargs="*", help=text)
    arguments.add_data_root(command)
    text = "images at once (default 64)"
    command.add_argument("--batch-size", number=Batch, default=64, help=text)
    command.add_argument("--workers", number=Workers, help="processes that decode")
    command.add_argument("--top", number=Batch, help="classes of an image (default 5, or all)")
    arguments.add_ema(command)
    command.add_argument("--csv", action="store_true", help="as CSV instead of JSON lines")
    command.add_argument("--out", type=Path, help="file to write (default: standard output)")
    command = add("label-maps", _label_maps, "keep what a teacher says of each cell of each image")
    text = (
        "a run folder or checkpoint, timm:NAME (timm:local-dir:FOLDER for an export), or "
        "published:FOLDER: the maps that LV-ViT's authors published, to be converted"
    )
    command.add_argument("teacher", metavar="TEACHER", help=text)
    arguments.add_data_root(command, arguments.OF_THE_RUN)
    command.add_argument("--out", type=Path, required=True, help="folder to write, or to go on in")
    arguments.add_image_size(command)
    command.add_argument(
        "--top", number=Batch, default=5, help="classes kept of a cell (default 5)"
    )
    text = "images at once (default 64)"
    command.add_argument("--batch-size", number=Batch, default=64, help=text)
    command.add_argument("--workers", number=Workers, help="processes that decode, of each rank")
    arguments.add_ema(command)


def _evaluate(options: argparse.Namespace) -> None:
    size, root = arguments.size_of(options), arguments.data_root_of(options, options.path)
    arguments.refuse_memory_alone(options)
    data = arguments.recipe_of(options.path).data
    if isinstance(data, Segmentation):
        _evaluate_pixels(options, root, size)
        return
    if isinstance(data, Detection):
        _evaluate_objects(options, root)
        return
    for name in ("scales", "flips", "pictures"):
        if getattr(options, name):
            raise ValueError(f"--{name}: these are images with a class each; leave it out")
    from bigvit.evaluate import evaluate_checkpoint

    more = (options.batch_size or 64, root, options.workers, size)
    more = (*more, options.crop_ratio, options.labels)
    last = (options.ema, options.dispatch, options.memory)
    print(json.dumps(evaluate_checkpoint(options.path, *more, *last), indent=2))


def _evaluate_pixels(
    options: argparse.Namespace, root: Path | None, size: int | tuple[int, int] | None
) -> None:
    _check_dense(options, "a class a pixel", ("crop_ratio", "labels", "dispatch"))
    from bigvit.dense.of_checkpoint import evaluate_scenes

    scales = tuple(options.scales or (1.0,))
    given = options.path, options.batch_size or 8, root, options.workers, size, options.ema
    evaluated = partial(evaluate_scenes, *given, scales, options.flips)
    if options.pictures is None:
        print(json.dumps(evaluated(), indent=2))
        return
    from bigvit.visualize.pixel_classes import TOGETHER, Kept

    _pictured(options.pictures, evaluated, Kept(options.count), TOGETHER)


def _evaluate_objects(options: argparse.Namespace, root: Path | None) -> None:
    more = "image_size", "scales", "flips"
    _check_dense(options, "objects", (*more, "crop_ratio", "labels", "dispatch"))
    from bigvit.dense.objects import evaluate_objects

    given = options.path, options.batch_size or 4, root, options.workers, options.ema
    evaluated = partial(evaluate_objects, *given)
    if options.pictures is None:
        print(json.dumps(evaluated(), indent=2))
        return
    from bigvit.visualize.objects import TOGETHER, Kept

    _pictured(options.pictures, evaluated, Kept(options.count), TOGETHER)


def _check_dense(options: argparse.Namespace, known: str, others: Sequence[str]) -> None:
    """Refuse options that are for other images than those of which such is known, and a picture
    that cannot be written."""
    for name in others:
        if getattr(options, name):
            option = name.replace("_", "-")
            raise ValueError(f"--{option}: these are images with {known}; leave it out")
    if options.pictures is not None:
        arguments.refuse_unwritable(options.pictures, "--pictures")


def _pictured(path: Path, evaluated: Callable[..., dict[str, Any]], kept: Any, each: int) -> None:
    """Evaluate, and draw what is kept of it, so many panels of an image."""
    from bigvit.visualize import drawing
    from bigvit.visualize.samples import draw_panels

    drawing.check(path, "--pictures")
    found = evaluated(seen=kept)
    draw_panels(kept.panels, each, path)
    print(json.dumps(found | {"pictures": str(path)}, indent=2))


def _compare(options: argparse.Namespace) -> None:
    from bigvit.recipe.find import find_recipe

    given = [options.model, *options.models]
    if twice := [each for i, each in enumerate(given) if each in given[:i]]:
        raise ValueError(f"MODEL: {twice[0]} is given twice; give it once")
    data = None if options.recipe is None else find_recipe(options.recipe)[1].data
    runs = [Path(each) for each in given if not each.startswith("timm:")]
    for run in runs:
        arguments.refuse_no_checkpoint(run)
    if not runs and options.recipe is None:
        raise ValueError("--recipe: no run says which test set it is; give a recipe's name")
    if not runs and options.ema:
        raise ValueError("--ema: timm's models have no average; leave it out")
    first = arguments.data_root_of(options, runs[0]) if runs else options.data_root
    arguments.refuse_unwritable(options.out)
    from bigvit.visualize import drawing, most_apart
    from bigvit.visualize.compare import compare

    drawing.check(options.out)

    more = (options.batch_size, options.workers, options.ema)
    answers, test, data = compare(given, data, first, *more)
    most_apart.draw(answers, test, data, options.count, options.out)
    found = answers.as_json()
    if options.json:
        print(json.dumps(found | {"picture": str(options.out)}, indent=2))
        return
    rows: list[list[str]] = []
    for number, name in enumerate(answers.names):
        its = found["models"][name]
        points, low, high = answers.difference(number, 0)
        than = f"{points:+.2f} ({low:+.2f} to {high:+.2f})" if number else ""
        rows.append([name, f"{its['top1']:.2f}", f"{its['ece']:.3f}", than])
    print(f"{found['images']:,} images")
    print_table(("model", "top-1 %", "ECE", "than the first, 95 %"), rows)
    print("\nclassified differently, share of the images")
    table = found["disagreement"]
    print_table(["", *table], [[one, *(f"{n:.3f}" for n in table[one].values())] for one in table])
    print(options.out)


def _label_maps(options: argparse.Namespace) -> int:
    given, root = options.teacher, options.data_root
    try:
        size = arguments.size_of(options) or 576  # arXiv:2104.10858's
        if not given.startswith(("timm:", "published:")):
            arguments.refuse_no_checkpoint(Path(given))
            root = arguments.data_root_of(options, Path(given))
        elif options.ema:
            raise ValueError(f"--ema: {given} has no average; leave it out")
        elif root is None:
            raise ValueError("--data-root is missing: whose training images are to have maps?")
        if options.out.exists() and not options.out.is_dir():
            raise ValueError(f"--out {options.out}: it is a file; name a folder")
    except (ValueError, OSError) as error:
        return arguments.refused_once(error)
    from bigvit.labelling.make import run

    more = (options.batch_size, options.workers, options.ema)
    return run(given, options.out, root, size, options.top, *more)


def _predict(options: argparse.Namespace) -> None:
    given, root = options.model, options.data_root
    if not given.startswith("timm:") and not (Path(given) / "model.safetensors").is_file():
        arguments.refuse_no_checkpoint(Path(given))
    elif options.ema:
        raise ValueError(f"--ema: {given} has no average; leave it out")
    if bool(options.images) == (root is not None):
        raise ValueError("name image files and folders, or a data set by --data-root, not both")
    if options.out is not None:
        arguments.refuse_unwritable(options.out)
        arguments.refuse_other_kind(options.out, (".csv", ".json", ".jsonl", ".txt"))
    from bigvit.labelling.predict import asked, found, predict, test_images, write
    from bigvit.ranks.joining import alone

    model = asked(given, options.ema, alone())
    source = found(options.images) if root is None else test_images(model, root)
    top = min(5, model.outputs) if options.top is None else options.top
    said = predict(model, source, top, options.batch_size, options.workers)
    if options.out is None:
        bad = write(said, top, options.csv, sys.stdout)
    else:
        with options.out.open("w", newline="") as file:
            bad = write(said, top, options.csv, file)
    if len(bad) == len(source):
        raise ValueError(f"none of the {len(bad):,} images can be read ({bad[0]}, ...)")
    if bad:
        images = "image cannot be read: " if len(bad) == 1 else "images cannot be read, first "
        print(f"warning: {len(bad):,} {images}{bad[0]}", file=sys.stderr)
