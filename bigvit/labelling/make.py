"""`bigvit label-maps`: a teacher's maps of a data set's training images, over any number of ranks.

Each rank makes its contiguous share of the files that are missing. What an image is given depends
on no rank: each file is made of the same batches.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from bigvit.checkpoint.run import classes_map_of
from bigvit.data.label_maps.form import BadMaps, Form, Teacher
from bigvit.data.label_maps.maps import LabelMaps
from bigvit.data.loader import whole_batches
from bigvit.data.prepare import Normalise
from bigvit.data.sources import Source, open_source
from bigvit.data.workers import workers_for
from bigvit.labelling.dense import Dense, dense
from bigvit.labelling.progress import Progress
from bigvit.labelling.published import PUBLISHED, convert
from bigvit.labelling.write import Writer, shard_of
from bigvit.ranks.joining import Ranks
from bigvit.ranks.memory import wanting
from bigvit.ranks.stopping import StopRequest
from bigvit.ranks.together import Stopped, together
from bigvit.recipe import Images, ImageSize, sides


def run(
    given: str,
    out: Path,
    data_root: Path | None,
    image_size: ImageSize,
    top: int,
    batch_size: int,
    workers: int | None,
    ema: bool,
) -> int:
    """Make maps with the ranks that were launched, and say so; the exit code. With others, it is
    the process that ends."""

    def work(ranks: Ranks, stop: StopRequest | None) -> None:
        maps = make(given, out, ranks, data_root, image_size, top, batch_size, workers, ema, stop)
        if ranks.rank == 0:
            form = maps.form
            cells, size = "{} x {}".format(*form.cells), form.nbytes / 1e9
            print(f"{out}: {len(maps):,} maps of {cells} cells, top {form.top}, {size:.2f} GB")

    return together(work, "files that are done stay, and the same command goes on")


def make(
    given: str,
    out: Path,
    ranks: Ranks,
    data_root: Path | None,
    image_size: ImageSize,
    top: int,
    batch_size: int,
    workers: int | None,
    ema: bool,
    stop: StopRequest | None = None,
    say: Callable[[str], None] = print,
) -> LabelMaps:
    """Make what is missing of the maps of all training images. Collective.

    Raises:
        Stopped: `stop` was asked.
        ValueError: on every rank; teacher, data and maps do not belong together.
        BadMaps: an image cannot be read, or has scores that cannot be kept.
    """
    if given.startswith(PUBLISHED):
        return convert(given, out, ranks, data_root, image_size, top, say)
    with ranks.agree_on_error(ValueError, raised=BadMaps):
        teacher = dense(given, image_size, ema, ranks.device)
        source = open_source(teacher.data, "train", data_root, classes_map_of(Path(given)))
        check_classes(teacher, source, top)
    if len(set(ranks.texts(teacher.digest))) > 1:
        raise BadMaps(f"{given}: the ranks read different weights; every host needs the same")
    made = Teacher(given, teacher.digest, sides(image_size))
    shard = shard_of(len(source))
    form = Form(len(source), teacher.cells, top, tuple(source.classes), shard, "", made)
    writer = Writer(out, form, source, ranks)
    processes = workers_for(workers) if isinstance(teacher.data, Images) else 0
    try:
        with ranks.agree_on_error(BadMaps, raised=BadMaps):
            if writer.todo:
                _try(teacher, batch_size, image_size, ranks)
        _make(teacher, source, writer, ranks, batch_size, processes, stop, say)
        return writer.finish()
    finally:
        writer.release()


def check_classes(teacher: Dense, source: Source, top: int) -> None:
    """Refuse a teacher that tells other classes apart than the images are of.

    Raises:
        ValueError: says which.
    """
    here = f"the training images have {len(source.classes):,} classes"
    if teacher.outputs != len(source.classes):
        raise ValueError(
            f"{teacher.name}: it tells {teacher.outputs:,} classes apart, and {here}; choose a "
            "teacher of theirs"
        )
    if teacher.classes is not None and teacher.classes != source.classes:
        pairs = zip(teacher.classes, source.classes, strict=True)
        number, one, other = next((i, a, b) for i, (a, b) in enumerate(pairs) if a != b)
        raise ValueError(
            f"{teacher.name}: its class {number} is {one!r}, and the training images' is "
            f"{other!r}; choose a teacher of theirs"
        )
    if top > teacher.outputs:
        raise ValueError(f"--top {top} is not allowed; {here}")


@torch.inference_mode()
def _try(teacher: Dense, batch_size: int, image_size: ImageSize, ranks: Ranks) -> None:
    """Score a batch of nothing, before the first image is read.

    Raises:
        BadMaps: it takes more memory than there is.
    """
    shape = batch_size, teacher.data.channels, *sides(image_size)
    try:
        teacher.score(torch.zeros(shape, device=ranks.device))
    except (RuntimeError, MemoryError) as error:
        if not (said := wanting(error)):
            raise
        raise BadMaps(
            f"--batch-size {batch_size} at --image-size {image_size}: {said}; use a smaller batch, "
            "or smaller images"
        ) from None


@torch.inference_mode()
def _make(
    teacher: Dense,
    source: Source,
    writer: Writer,
    ranks: Ranks,
    batch_size: int,
    workers: int,
    stop: StopRequest | None,
    say: Callable[[str], None],
) -> None:
    """This rank's files."""
    form, normalise = writer.form, Normalise(teacher.data, ranks.device)

    def batches() -> Iterator[range]:
        for number in writer.todo:
            rows = form.rows(number)
            yield from (rows[i : i + batch_size] for i in range(0, len(rows), batch_size))

    progress = Progress(sum(len(form.rows(n)) for n in writer.todo), form.images, ranks, say)
    most = ranks.agree(sum(1 for _ in batches()))
    ranks.at("making maps")
    images, done = whole_batches(source, teacher.data, batches(), batch_size, workers), 0
    for number in writer.todo:
        rows, parts = form.rows(number), list[tuple[np.ndarray, np.ndarray]]()
        for _ in range(-(-len(rows) // batch_size)):
            if stop is not None and stop.asked():
                raise Stopped(stop.reason)
            batch = next(images)
            if len(batch.bad):
                names = ", ".join(source.name(id) for id in batch.bad.tolist())
                raise BadMaps(f"{names} cannot be read; mend it, or take it out of the data set")
            scores, classes = teacher.score(normalise(batch.images)).topk(form.top, dim=-1)
            kept = int(batch.valid.sum())
            parts.append((classes[:kept].cpu().numpy(), scores[:kept].cpu().numpy()))
            done += 1
            ranks.went_on()
            progress(kept)
        writer.write(number, *(np.concatenate(each) for each in zip(*parts, strict=True)))
    for _ in range(most - done):  # as far as those that had more to do
        ranks.went_on()
