"""Commands about what a model's features are worth, without training it on."""

import argparse
import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bigvit.cli import arguments
from bigvit.recipe.bounds import Batch, Bound, Length, Workers

if TYPE_CHECKING:
    from bigvit.labelling.predict import Files
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
    text = "rank training images by how near they are to some images"
    command = add("retrieve", _retrieve, text)
    _add_given(command)
    text = "image files, and folders of them"
    command.add_argument("images", metavar="IMAGE", type=Path, nargs="*", help=text)
    text = "training images of each (default 10)"
    command.add_argument("--top", number=Batch, default=10, help=text)
    text = "print the mean average precision over the test images"
    command.add_argument("--map", action="store_true", help=text)
    text = "coarse classes: a file as --classes-map takes, a level's name, or trained: the run's"
    command.add_argument("--coarse", metavar="FILE|LEVEL", help=text)
    text = "rank by cosine and coarse class: as it is predicted (default with --coarse), or known"
    by = ("prediction", "oracle", "none")
    command.add_argument("--condition", choices=by, default=None, help=text)
    text = "show so many test images, and at which level what is near to them is right"
    command.add_argument("--examples", number=Batch, metavar="N", help=text)
    text = "its levels besides the own classes, from fine to coarse: names, files, trained"
    command.add_argument("--levels", metavar="A,B,...", help=text)
    text = "picture to write: each image before its first ten"
    command.add_argument("--picture", type=Path, metavar="FILE", help=text)


def _add_given(command: argparse.ArgumentParser) -> None:
    text = "a run folder or checkpoint, an export's folder, or timm:NAME"
    command.add_argument("model", metavar="MODEL", help=text)
    arguments.add_data_root(command, arguments.OF_THE_RUN)
    text = "coarser classes: a JSON object, or CSV of two columns, from class to coarser class"
    command.add_argument("--classes-map", type=Path, metavar="FILE", help=text)
    text = (
        "level at which classes are counted, as data.level names it (default: the run's); own: the"
    )
    command.add_argument("--level", metavar="NAME", help=f"{text} data set's own classes")
    text = "features of the trunk, also where training compared images by a projection of them"
    command.add_argument("--trunk", action="store_true", help=text)
    text = "the data set may have other classes than the model was trained on"
    command.add_argument("--other-classes", action="store_true", help=text)
    text = "folder to keep embeddings in (default: RUN/embeddings; of other models nowhere)"
    command.add_argument("--keep", type=Path, metavar="FOLDER", help=text)
    text = "images at once (default 64)"
    command.add_argument("--batch-size", number=Batch, default=64, help=text)
    command.add_argument("--workers", number=Workers, help="processes that decode")
    arguments.add_ema(command)


def _given(
    options: argparse.Namespace,
    tested: bool = True,
    coarse: str | None = None,
    shown: Sequence[str] | None = None,
) -> "Given":
    """What is asked, refused as far as it can be before torch is imported.

    Args: tested: whether test images are needed.
    """
    name, root, keep = options.model, options.data_root, options.keep
    if not name.startswith("timm:") and not (Path(name) / "model.safetensors").is_file():
        arguments.refuse_no_checkpoint(Path(name))
        root = arguments.data_root_of(options, Path(name))
    elif options.ema:
        raise ValueError(f"--ema: {name} has no average; leave it out")
    if keep is not None and keep.exists() and not keep.is_dir():
        raise ValueError(f"--keep {keep}: it is a file; name a folder")
    if options.classes_map is not None and options.level is not None:
        raise ValueError("--level and --classes-map say the same; give one of them")
    if options.classes_map is not None:
        from bigvit.data.levels import read_map

        read_map(options.classes_map)
    from bigvit.neighbours.given import given

    more = (options.level, options.classes_map, keep, options.other_classes, tested, options.trunk)
    more = (*more, coarse, shown)
    return given(name, root, options.ema, *more)


def _over_ranks(
    options: argparse.Namespace, opened: Callable[[], "Given"], answer: Callable[["Given"], None]
) -> int:
    """Embed over the ranks that were launched, and answer on the first; the exit code.

    Args:
        opened: gives what is asked, or refuses it.
    """
    from bigvit.ranks.launched import launched

    try:
        asked = opened()
        if launched().world == 1:
            answer(asked)
            return 0
    except (ValueError, OSError) as error:
        return arguments.refused_once(error)
    from bigvit.ranks.joining import Ranks
    from bigvit.ranks.stopping import SIGNALS, StopRequest
    from bigvit.ranks.together import together

    def work(ranks: Ranks, stop: StopRequest | None) -> None:
        made = asked.prepare(ranks, options.batch_size, options.workers, stop)
        if ranks.rank == 0:  # the others leave
            for number in SIGNALS:  # nobody looks at a request from here on
                signal.signal(number, signal.SIG_DFL)
            answer(made)

    return together(work, "what was complete is kept, and the same command goes on")


def _neighbours(options: argparse.Namespace) -> int:
    more = (options.neighbours, options.temperature, options.batch_size, options.workers)

    def opened() -> "Given":
        from bigvit.neighbours.given import refuse_too_many

        asked = _given(options)
        refuse_too_many(options.neighbours, len(asked.train), "--neighbours")
        return asked

    def answer(asked: "Given") -> None:
        from bigvit.neighbours.classify import neighbours

        print(json.dumps(neighbours(asked, *more), indent=2))

    return _over_ranks(options, opened, answer)


def _probe(options: argparse.Namespace) -> int:
    more = (options.epochs, options.train_batch, options.batch_size, options.workers)

    def answer(asked: "Given") -> None:
        from bigvit.neighbours.probe import probe

        print(json.dumps(probe(asked, *more), indent=2))

    return _over_ranks(options, lambda: _given(options), answer)


MOST = 50  # rows of a picture


def _retrieve(options: argparse.Namespace) -> int:
    top, picture = options.top, options.picture
    if not options.images and not options.map and options.examples is None:
        raise ValueError("name image files and folders, or give --map or --examples N")
    if options.images and options.examples is not None:
        raise ValueError("--examples: it shows test images; leave it out where images are named")
    if options.levels is not None and options.examples is None:
        raise ValueError("--levels: it is of --examples; give that, too")
    if picture is not None:
        if not options.images and options.examples is None:
            raise ValueError("--picture: it shows what is near to images; name some, or --examples")
        arguments.refuse_unwritable(picture, "--picture")
    by = options.condition or ("none" if options.coarse is None else "prediction")
    if by != "none" and options.coarse is None:
        raise ValueError(f"--condition {by}: by which coarse classes? Name them by --coarse")
    if by == "oracle" and options.images:
        raise ValueError("--condition oracle: nothing says the classes of files; give --map alone")
    shown = None
    if options.examples is not None:
        shown = ("trained",) if options.levels is None else options.levels.split(",")
    tested = options.map or options.examples is not None
    listed = bool(options.images) or options.examples is not None
    files: Files | None = None

    def opened() -> "Given":
        nonlocal files
        asked = _given(options, tested=tested, coarse=options.coarse, shown=shown)
        from bigvit.labelling.predict import found
        from bigvit.neighbours.given import refuse_too_many
        from bigvit.visualize import drawing

        files = found(options.images)
        if picture is not None:
            drawing.check(picture, "--picture")
            if (count := options.examples or len(files)) > MOST:
                raise ValueError(
                    f"--picture: it shows {MOST} images at most, and {count:,} are named"
                )
        refuse_too_many(top if listed else 1, len(asked.train), "--top")
        return asked

    def answer(asked: "Given") -> None:
        from bigvit.neighbours.retrieve import Retrieval, draw, lines

        retrieval = Retrieval(asked, options.batch_size, options.workers, by)
        if listed:
            assert files is not None
            if options.examples is None:
                source, ranked = files, retrieval.nearest(files, top)
            else:
                assert asked.test is not None, "it was asked for"
                source, ranked = asked.test, retrieval.examples(options.examples, top)
            for line in lines(ranked, source, asked.train):
                print(json.dumps(line, ensure_ascii=False))
            if picture is not None:
                draw(ranked, source, retrieval, picture)
        if options.map:
            print(json.dumps(retrieval.mean_average_precision()))

    return _over_ranks(options, opened, answer)
