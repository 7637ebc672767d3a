"""Commands about what a model's features are worth, without training it on."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bigvit.cli import arguments
from bigvit.recipe.bounds import Batch, Bound, Length, Workers

if TYPE_CHECKING:
    from bigvit.neighbours.given import Given

Temperature = Annotated[float, Bound(1e-4, 1e4)]


def add(add: arguments.Add) -> None:
    """Add the commands."""
    text = "classify test images by their nearest training images, without training"
    command = add("neighbours", _neighbours, text)
    _add_given(command)
    text = "training images that vote (default 20)"
    command.add_argument("--neighbours", number=Batch, default=20, metavar="K", help=text)
    text = "that cosines are divided by (default 0.07)"
    command.add_argument("--temperature", number=Temperature, default=0.07, help=text)
    text = "train a linear classifier on features, at many learning rates at once"
    command = add("probe", _probe, text)
    _add_given(command)
    text = "of the classifiers' training (default 100)"
    command.add_argument("--epochs", number=Length[int], default=100, help=text)
    text = "features of an update (default 1024, or all)"
    command.add_argument("--train-batch", number=Batch, default=1024, help=text)


def _add_given(command: argparse.ArgumentParser) -> None:
    text = "a run folder or checkpoint, an export's folder, or timm:NAME"
    command.add_argument("model", metavar="MODEL", help=text)
    arguments.add_data_root(command, arguments.OF_THE_RUN)
    text = "coarser classes: a JSON object, or CSV of two columns, from class to coarser class"
    command.add_argument("--classes-map", type=Path, metavar="FILE", help=text)
    text = "the data set may have other classes than the model was trained on"
    command.add_argument("--other-classes", action="store_true", help=text)
    text = "folder to keep embeddings in (default: RUN/embeddings; of other models nowhere)"
    command.add_argument("--keep", type=Path, metavar="FOLDER", help=text)
    text = "images at once (default 64)"
    command.add_argument("--batch-size", number=Batch, default=64, help=text)
    command.add_argument("--workers", number=Workers, help="processes that decode")
    arguments.add_ema(command)


def _given(options: argparse.Namespace) -> "Given":
    """What is asked, refused as far as it can be before torch is imported."""
    name, root, keep = options.model, options.data_root, options.keep
    if not name.startswith("timm:") and not (Path(name) / "model.safetensors").is_file():
        arguments.refuse_no_checkpoint(Path(name))
        root = arguments.data_root_of(options, Path(name))
    elif options.ema:
        raise ValueError(f"--ema: {name} has no average; leave it out")
    if keep is not None and keep.exists() and not keep.is_dir():
        raise ValueError(f"--keep {keep}: it is a file; name a folder")
    if options.classes_map is not None:
        from bigvit.neighbours.levels import read_map

        read_map(options.classes_map)
    from bigvit.neighbours.given import given

    return given(name, root, options.ema, options.classes_map, keep, options.other_classes)


def _neighbours(options: argparse.Namespace) -> None:
    asked = _given(options)
    from bigvit.neighbours.classify import neighbours

    more = (options.neighbours, options.temperature, options.batch_size, options.workers)
    print(json.dumps(neighbours(asked, *more), indent=2))


def _probe(options: argparse.Namespace) -> None:
    asked = _given(options)
    from bigvit.neighbours.probe import probe

    more = (options.epochs, options.train_batch, options.batch_size, options.workers)
    print(json.dumps(probe(asked, *more), indent=2))
