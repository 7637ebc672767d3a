"""Commands that read a trained model to count with it or to hand it on."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

Add = Callable[..., argparse.ArgumentParser]
"""Adds a command: its name, what runs it, a line of help."""

A_RUN_OR_ONE = "a run folder (its newest checkpoint), or one"


def add(add: Add) -> None:
    """Add the commands."""
    command = add("evaluate", _evaluate, "count what a checkpoint gets right on the test images")
    command.add_argument("path", type=Path, help=A_RUN_OR_ONE)
    command.add_argument("--batch-size", type=int, default=64, help="images at once (default 64)")
    add_data_root(command)
    command.add_argument("--workers", type=int, help="processes that decode (default: by cores)")
    add_image_size(command)
    command.add_argument("--crop-ratio", type=float, help="another crop ratio")
    command.add_argument("--labels", type=Path, help="ReaL's real.json: what counts as right")
    add_ema(command)
    command = add("export", _export, "write a checkpoint's weights as a folder that timm loads")
    command.add_argument("path", type=Path, help=A_RUN_OR_ONE)
    command.add_argument("--out", type=Path, help="folder to write (default: export/ of the run)")
    add_ema(command)
    add_image_size(command)


def add_data_root(command: argparse.ArgumentParser) -> None:
    text = "where the data set is (default: the run's)"
    command.add_argument("--data-root", type=Path, help=text)


def add_image_size(command: argparse.ArgumentParser) -> None:
    text = "another resolution: side, or height and width, pixels"
    command.add_argument("--image-size", type=int, nargs="+", metavar="PIXELS", help=text)


def add_ema(command: argparse.ArgumentParser) -> None:
    command.add_argument("--ema", action="store_true", help="the average of the weights instead")


def size_of(options: argparse.Namespace) -> int | tuple[int, int] | None:
    """What `--image-size` says."""
    if (given := options.image_size) is None:
        return None
    if len(given) > 2:
        raise ValueError(f"--image-size: {given} is not one or two numbers of pixels")
    return given[0] if len(given) == 1 else (given[0], given[1])


def run_folder_of(path: Path) -> Path:
    """The run folder that is meant, where a checkpoint of it may be named."""
    from bigvit.checkpoint.manifest import STEP
    from bigvit.checkpoint.run import run_of

    return run_of(path) if STEP.fullmatch(path.name) else path


def data_root_of(options: argparse.Namespace, path: Path) -> Path | None:
    """Where `--data-root` says that the data are, or where the run found them."""
    if options.data_root is not None:
        return options.data_root
    from bigvit.recipe.words import read_json

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


def _evaluate(options: argparse.Namespace) -> None:
    size, root = size_of(options), data_root_of(options, options.path)
    refuse_no_checkpoint(options.path)
    from bigvit.evaluate import evaluate_checkpoint

    more = (options.batch_size, root, options.workers, size, options.crop_ratio, options.labels)
    print(json.dumps(evaluate_checkpoint(options.path, *more, options.ema), indent=2))


def _export(options: argparse.Namespace) -> None:
    size, folder = size_of(options), options.out or run_folder_of(options.path) / "export"
    refuse_no_checkpoint(options.path)
    from bigvit.export import export

    try:
        print(export(options.path, folder, size, options.ema))
    except OSError as error:
        raise ValueError(f"--out {folder} cannot be written: {error}") from None
