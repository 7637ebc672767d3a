"""Maps as LV-ViT's authors published them, by our format.

They are a file an image, FOLDER/CLASS/IMAGE.pt, which `torch.save` wrote: a tensor (2, k, h, w) of
16-bit floats, the logits of the k best classes of each cell and then their numbers. 16-bit floats
hold whole numbers exactly up to 2,048, for which 2,049 is taken, too: a larger class cannot be told
again. Nothing is unpickled but tensors.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bigvit.checkpoint.pickled import Stored, TorchFile
from bigvit.data.label_maps.form import BadMaps, Form, Teacher
from bigvit.data.label_maps.maps import LabelMaps
from bigvit.data.sources import open_source
from bigvit.labelling.progress import Progress
from bigvit.labelling.whole import WHOLE
from bigvit.labelling.write import Writer, shard_of
from bigvit.ranks.joining import Ranks
from bigvit.recipe import ImageSize, sides

PUBLISHED = "published:"
EXACT = 2048  # the first number that a 16-bit float holds for another one, too


def convert(
    given: str,
    out: Path,
    ranks: Ranks,
    data_root: Path | None,
    image_size: ImageSize,
    top: int,
    say: Callable[[str], None],
) -> LabelMaps:
    """Write the maps of all training images. Collective.

    Args:
        image_size: that they were made at, for which nothing else speaks.

    Raises:
        BadMaps: an image has none, or one that is damaged or whose classes cannot be told.
    """
    folder = Path(given.removeprefix(PUBLISHED))
    with ranks.agree_on_error(ValueError, OSError, raised=BadMaps):
        source = open_source(WHOLE, "train", data_root)
        classes = tuple(source.classes)
        first = read(folder, source.name(0), len(classes), top)
        cells = (first[0].shape[0], first[0].shape[1])
    teacher = Teacher(given, "not known", sides(image_size))
    shard = shard_of(len(source))
    form = Form(len(source), cells, top, classes, shard, "", teacher)
    writer = Writer(out, form, source, ranks)
    try:
        rows = [writer.form.rows(number) for number in writer.todo]
        most = ranks.agree(len(rows))
        progress = Progress(sum(map(len, rows)), len(source), ranks, say)
        ranks.at("converting maps")
        for number, its in zip(writer.todo, rows, strict=True):
            each = [read(folder, source.name(row), len(classes), top, cells) for row in its]
            writer.write(number, *(np.stack(part) for part in zip(*each, strict=True)))
            ranks.went_on()
            progress(len(its))
        for _ in range(most - len(rows)):  # as far as those that had more to do
            ranks.went_on()
        return writer.finish()
    finally:
        writer.release()


def read(
    folder: Path, name: str, classes: int, top: int, cells: tuple[int, int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Class numbers and scores (h, w, top) of an image by its name, of as many classes.

    Raises:
        BadMaps: there is none, it is damaged or has other cells, or a number cannot be told.
    """
    path = folder / ("/".join(name.split("/")[-2:]).split(".")[0] + ".pt")
    try:
        file = TorchFile(path)
        if not isinstance(file.content, Stored):
            raise ValueError("it holds no tensor")
        [found] = file.read({"the map": file.content}).values()
        return _told(found, classes, top, cells)
    except FileNotFoundError:
        raise BadMaps(f"{name} has no map: there is no {path}; get all of them") from None
    except ValueError as error:
        raise BadMaps(f"{path}: {error}") from None


def _told(
    found: Tensor, classes: int, top: int, cells: tuple[int, int] | None
) -> tuple[np.ndarray, np.ndarray]:
    shape = tuple(found.shape)
    if len(shape) != 4 or shape[0] != 2 or 0 in shape or not found.dtype.is_floating_point:
        raise ValueError(f"it is {found.dtype} of shape {shape}, and not (2, k, h, w) of floats")
    if cells is not None and shape[2:] != cells:
        raise ValueError(f"it has {shape[2]} x {shape[3]} cells, and the first {cells}")
    if top > shape[1]:
        raise ValueError(f"--top {top}: it has the best {shape[1]} classes; choose so many")
    scores, numbers = found[:, :top].permute(0, 2, 3, 1).numpy()
    if not (np.isfinite(numbers).all() and (numbers % 1 == 0).all() and (numbers >= 0).all()):
        raise ValueError("it holds class numbers that are none")
    largest = int(numbers.max())
    if found.dtype == torch.float16 and largest >= EXACT and classes > EXACT + 1:
        raise ValueError(
            f"its class number {largest:,} is a 16-bit float, which stands for others above 2,048, "
            "too: it cannot be told again; make the maps anew by `bigvit label-maps`"
        )
    if largest >= classes:
        raise ValueError(f"it is of class {largest:,}, and the images have {classes:,} classes")
    return numbers.astype(np.int64), scores
