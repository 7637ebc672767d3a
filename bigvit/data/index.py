"""What a data set is, in three values: a run that goes on with another one is refused."""

from typing import Any

import numpy as np
import xxhash

from bigvit.data.sources import Source
from bigvit.recipe.check import INDEX


def describe(source: Source) -> dict[str, Any]:
    """Numbers of images and classes, and a digest of every image's name and class, in order, and of
    the names of the classes."""
    hasher = xxhash.xxh3_128()
    hasher.update("\0".join(source.classes).encode())
    hasher.update(np.asarray(source.targets, dtype="<i8").tobytes())
    for index in range(len(source)):
        hasher.update(source.name(index).encode() + b"\0")
    digest = hasher.hexdigest()
    return dict(zip(INDEX, (len(source), len(source.classes), digest), strict=True))
