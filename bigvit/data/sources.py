"""Where images come from. A source answers by image number, in any order, in any process."""

from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from bigvit.recipe import Data, Digits, Images

Split = Literal["train", "test"]


class Source(Protocol):
    """Shapes: C channels, H x W pixels."""

    classes: list[str]

    def __len__(self) -> int: ...

    def image(self, index: int) -> NDArray[np.uint8]:
        """Image (C, H, W)."""
        ...

    def target(self, index: int) -> int:
        """Class number."""
        ...


def open_source(data: Data, split: Split) -> Source:
    """The images of a split of a recipe's data."""
    match data:
        case Digits():
            return DigitsSource(split)
        case Images():
            raise AssertionError("check_data refuses it")


def class_names(data: Data) -> list[str] | None:
    """Names of the classes, where they are known without the data set."""
    match data:
        case Digits():
            return DigitsSource("test").classes
        case Images():
            return None


class DigitsSource:
    """scikit-learn's scanned digits; every sixth image is for testing, counted from the first."""

    def __init__(self, split: Split) -> None:
        from sklearn.datasets import load_digits

        digits: Any = load_digits()
        indices = np.arange(len(digits.target))
        chosen = indices % 6 == 0 if split == "test" else indices % 6 != 0
        # the scans count 0 to 16
        pixels = np.round(digits.images[chosen] * (255 / 16)).astype(np.uint8)
        self.images: NDArray[np.uint8] = pixels[:, None]
        self.targets = digits.target[chosen].astype(np.int64)
        self.classes = [str(name) for name in digits.target_names]

    def __len__(self) -> int:
        return len(self.targets)

    def image(self, index: int) -> NDArray[np.uint8]:
        return self.images[index]

    def target(self, index: int) -> int:
        return int(self.targets[index])
