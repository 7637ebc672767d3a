"""scikit-learn's scanned digits."""

from importlib.util import find_spec
from typing import Any

import numpy as np

from bigvit.data.sources.arrays import ArraySource
from bigvit.data.sources.source import Split


def refuse_missing() -> None:
    """Raise ValueError where the digits are not installed."""
    if find_spec("sklearn") is None:
        raise ValueError(
            "the digits come with scikit-learn, which is not installed: pip install 'bigvit[demo]'"
        )


class DigitsSource(ArraySource):
    """Every sixth image is for testing, counted from the first."""

    def __init__(self, split: Split) -> None:
        refuse_missing()
        from sklearn.datasets import load_digits

        digits: Any = load_digits()
        chosen = (np.arange(len(digits.target)) % 6 == 0) == (split == "test")
        # the scans count 0 to 16
        images = np.round(digits.images[chosen] * (255 / 16)).astype(np.uint8)
        targets = digits.target[chosen].astype(np.int64)
        super().__init__(split, images, targets, [str(name) for name in digits.target_names], "L")
