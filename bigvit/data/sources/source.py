"""What a source of images is."""

from collections.abc import Collection, Iterator
from typing import Any, Literal, Protocol

from numpy.typing import NDArray
from PIL import Image

from bigvit.data.decode import Photo

Split = Literal["train", "test"]
NAMES = {"train": ("train",), "test": ("validation", "val", "valid", "test")}
"""What a split is called on disk; where there are several, the first is taken."""


class Source(Protocol):
    """Answers by image number, in any order, in any process."""

    classes: list[str]  # by class number
    targets: NDArray[Any]  # class numbers (images,)

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """What the image is called where it is listed."""
        ...

    def all_names(self) -> Iterator[bytes]:
        """Every image's name in UTF-8 with a zero byte behind it, in order, many at a time."""
        ...

    def contents(self) -> NDArray[Any]:
        """What is known of every image without reading it (images, ...): how many bytes it has,
        -1 where it is not there; of images in memory, their pixels."""
        ...

    def open(self, index: int) -> Photo | Image.Image:
        """The image, not decoded yet; of images in memory, the image.

        Raises:
            BadImage: it cannot be read.
            Unread: no image can be read.
        """
        ...

    def read(self, index: int) -> Image.Image:
        """The decoded image: mode RGB, or L for the digits. Raises as `open` does."""
        ...


def choose(there: Collection[str], split: Split) -> str:
    """Which of the splits that are there is one; "" is what has no split's name.

    Raises:
        ValueError: none is.
    """
    for name in NAMES[split]:
        if name in there:
            return name
    listed = ", ".join(name or "files of another name" for name in there)
    raise ValueError(f"it has no {' or '.join(NAMES[split])} split, only {listed}")
