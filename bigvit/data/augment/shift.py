"""Shifts by a few pixels."""

from typing import NamedTuple

import numpy as np
from PIL import Image

from bigvit import keyed_random


class Moved(NamedTuple):
    """Where an image moves to, pixels."""

    down: int
    right: int

    def apply(self, image: Image.Image) -> Image.Image:
        """The moved image; what comes in at an edge is background, 0."""
        width, height = image.size
        return image.crop((-self.right, -self.down, width - self.right, height - self.down))


def draw(pixels: int, *place: int) -> Moved:
    """Up to `pixels` in each direction, every shift equally likely."""
    raw = keyed_random.bits(2, "augment", *place) % np.uint64(2 * pixels + 1)
    return Moved(int(raw[0]) - pixels, int(raw[1]) - pixels)
