"""Images whose classes are numbered as another data set, or a trained model, has them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bigvit.data.sources.source import Source


class Renumbered:
    """A source by other class numbers."""

    def __init__(self, source: Source, numbers: Sequence[int], classes: list[str]) -> None:
        """
        Args:
            numbers: the new one of each of the source's classes.
            classes: names by the new numbers; there may be more than the source has.
        """
        self.source, self.classes = source, classes
        self.targets: NDArray[np.int32] = np.array(numbers, np.int32)[source.targets]

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def target(self, index: int) -> int:
        return int(self.targets[index])

    def contents(self) -> NDArray[np.integer]:
        return self.source.contents()

    def read(self, index: int) -> Image.Image:
        return self.source.read(index)


def renumbered(source: Source, classes: list[str]) -> Source:
    """A source by the class numbers that its names have in a list.

    Raises:
        ValueError: a name is not in the list, or twice.
    """
    if source.classes == classes:
        return source
    number_of = {name: number for number, name in enumerate(classes)}
    for names in (source.classes, classes):
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two classes are called {twice!r}")
    if strange := [name for name in source.classes if name not in number_of]:
        shown = ", ".join(strange[:3]) + ", ..." * (len(strange) > 3)
        of = f"{len(strange):,} of {len(source.classes):,} classes"
        raise ValueError(f"{of} are not among the other {len(classes):,} ({shown})")
    return Renumbered(source, [number_of[name] for name in source.classes], classes)
