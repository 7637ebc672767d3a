"""Commands that read a trained model to count with it or to hand it on."""

import argparse
import json
from pathlib import Path

from bigvit.cli.arguments import (
    OF_THE_RUN,
    Add,
    add_data_root,
    add_ema,
    add_image_size,
    add_run_or_one,
    data_root_of,
    refuse_no_checkpoint,
    run_folder_of,
    size_of,
)
from bigvit.recipe.bounds import Batch, CropRatio, Workers


def add(add: Add) -> None:
    """Add the commands."""
    command = add("evaluate", _evaluate, "count what a checkpoint gets right on the test images")
    add_run_or_one(command)
    text = "images at once (default 64)"
    command.add_argument("--batch-size", number=Batch, default=64, help=text)
    add_data_root(command, OF_THE_RUN)
    text = "processes that decode (default: by cores)"
    command.add_argument("--workers", number=Workers, help=text)
    add_image_size(command)
    command.add_argument("--crop-ratio", number=CropRatio, help="another crop ratio")
    command.add_argument("--labels", type=Path, help="ReaL's real.json: what counts as right")
    add_ema(command)
    command = add("export", _export, "write a checkpoint's weights as a folder that timm loads")
    add_run_or_one(command)
    command.add_argument("--out", type=Path, help="folder to write (default: export/ of the run)")
    add_ema(command)
    add_image_size(command)


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
