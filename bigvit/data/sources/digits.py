"""scikit-learn's scanned digits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bigvit.data.sources.source import Split


class DigitsSource:
    """Every sixth image is for testing, counted from the first."""

    def __init__(self, split: Split) -> None:
        from sklearn.datasets import load_digits

        digits: Any = load_digits()
        indices = np.arange(len(digits.target))
        chosen = indices % 6 == 0 if split == "test" else indices % 6 != 0
        # the scans count 0 to 16
        self.images: NDArray[np.uint8] = np.round(digits.images[chosen] * (255 / 16)).astype(
            np.uint8
        )
        self.targets = digits.target[chosen].astype(np.int64)
        self.classes = [str(name) for name in digits.target_names]
        self.split = split

    def __len__(self) -> int:
        return len(self.targets)

    def name(self, index: int) -> str:
        return f"{self.split}[{index}]"

    def target(self, index: int) -> int:
        return int(self.targets[index])

    def contents(self) -> NDArray[np.uint8]:
        return self.images

    def read(self, index: int) -> Image.Image:
        return Image.fromarray(self.images[index])
