"""Label maps of a source's images, drawn from their names."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bigvit.data.label_maps.form import Form, Teacher, hashes_of
from bigvit.data.label_maps.maps import LabelMaps
from bigvit.data.sources import Source
from bigvit.labelling.write import Writer
from bigvit.ranks.joining import Ranks

CELLS, TOP = (3, 5), 2


def map_of(name: str) -> tuple[NDArray[np.int64], NDArray[np.float16]]:
    """Class numbers and scores (h, w, k) of an image of two classes."""
    random = np.random.default_rng(hashes_of([name.encode()])[0])
    scores = -np.sort(-random.normal(0, 3, (*CELLS, TOP)), axis=-1).astype(np.float16)
    first = random.integers(0, 2, CELLS)
    return np.stack([first, 1 - first], axis=-1), scores


def write_maps(source: Source, folder: Path, shard: int = 16) -> LabelMaps:
    """Those of all its images."""
    form = Form(0, CELLS, TOP, tuple(source.classes), shard, "", Teacher("one", "0", (48, 80)))
    writer = Writer(folder, form, source, Ranks(0, 1, torch.device("cpu"), None, hosts=("here",)))
    for number in writer.todo:
        each = [map_of(source.name(row)) for row in writer.form.rows(number)]
        writer.write(number, *map(np.stack, zip(*each, strict=True)))
    return writer.finish()
