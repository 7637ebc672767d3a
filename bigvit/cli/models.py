"""Commands that read a trained model to count with it or to hand it on."""

import argparse
import json
from pathlib import Path

from bigvit.cli import arguments
from bigvit.recipe.bounds import Batch, CropRatio, Workers


def add(add: arguments.Add) -> None:
    """Add the commands."""
    command = add("evaluate", _evaluate, "count what a checkpoint gets right on the test images")
    arguments.add_run_or_one(command)
    text = "images at once (default 64)"
    command.add_argument("--batch-size", number=Batch, default=64, help=text)
    arguments.add_data_root(command, arguments.OF_THE_RUN)
    text = "processes that decode (default: by cores)"
    command.add_argument("--workers", number=Workers, help=text)
    arguments.add_image_size(command)
    command.add_argument("--crop-ratio", number=CropRatio, help="another crop ratio")
    command.add_argument("--labels", type=Path, help="ReaL's real.json: what counts as right")
    arguments.add_ema(command)
    arguments.add_dispatch(command)
    command = add("export", _export, "write a checkpoint's weights as a folder that timm loads")
    arguments.add_run_or_one(command)
    command.add_argument("--out", type=Path, help="folder to write (default: export/ of the run)")
    arguments.add_ema(command)
    arguments.add_image_size(command)


def _evaluate(options: argparse.Namespace) -> None:
    size, root = arguments.size_of(options), arguments.data_root_of(options, options.path)
    arguments.refuse_memory_alone(options)
    arguments.refuse_no_checkpoint(options.path)
    from bigvit.evaluate import evaluate_checkpoint

    more = (options.batch_size, root, options.workers, size, options.crop_ratio, options.labels)
    last = (options.ema, options.dispatch, options.memory)
    print(json.dumps(evaluate_checkpoint(options.path, *more, *last), indent=2))


def _export(options: argparse.Namespace) -> None:
    size = arguments.size_of(options)
    folder = options.out or arguments.run_folder_of(options.path) / "export"
    arguments.refuse_no_checkpoint(options.path)
    from bigvit.export import export

    try:
        print(export(options.path, folder, size, options.ema))
    except OSError as error:
        raise ValueError(f"--out {folder} cannot be written: {error}") from None
