"""What a data set is, in four values: a run that goes on with another one is refused."""

from typing import Any

import numpy as np
import xxhash

from bigvit.data.sources import Source
from bigvit.recipe.check import INDEX

Index = dict[str, dict[str, Any]]
"""What `describe` says, by split."""


def describe(source: Source) -> dict[str, Any]:
    """Numbers of images and classes; a digest of every image's name and class, in order, and of the
    names of the classes; and one of what the images hold, as far as their sizes tell."""
    hasher = xxhash.xxh3_128()
    hasher.update("\0".join(source.classes).encode())
    hasher.update(np.asarray(source.targets, dtype="<i8").tobytes())
    for block in source.all_names():
        hasher.update(block)
    contents = xxhash.xxh3_128_hexdigest(source.contents().tobytes())
    values = (len(source), len(source.classes), hasher.hexdigest(), contents)
    return dict(zip(INDEX, values, strict=True))


def shared(index: Index, other: Index) -> Index:
    """What an index says of that which another says something of, too: an older bigvit said less,
    and a recipe may have been without a test set."""
    return {
        split: {key: value for key, value in values.items() if key in other[split]}
        for split, values in index.items()
        if split in other
    }
