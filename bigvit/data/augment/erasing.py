"""Random erasing (arXiv:1708.04896) as timm does it in its mode 'pixel': a box of noise."""

import functools
import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigvit import keyed_random
from bigvit.recipe import Images, sides

AREA = (0.02, 1 / 3)  # range of the box's area, as a share of the image's
RATIO = (0.3, 1 / 0.3)  # range of height / width, log-uniform
TRIES = 10  # then nothing is erased


class Erased(NamedTuple):
    """A box, pixels, and the noise that fills it."""

    left: int
    top: int
    width: int
    height: int
    noise: int  # what the noise is a function of
    mean: tuple[float, ...]  # a channel's mean, of values in [0, 1]
    std: tuple[float, ...]  # a channel's standard deviation, of values in [0, 1]

    def apply(self, image: NDArray[np.uint8]) -> None:
        """Fill the box of the image (C, H, W), in place.

        timm draws N(0, 1) for every value after normalisation. Here images are normalised on the
        device, so the noise is written as the uint8 that normalises nearest to it,
        round(255 clip(noise std + mean, 0, 1)): noise beyond black and white is lost.
        """
        count = len(image) * self.height * self.width
        # 16 bits a value: noise in 65,536 equally likely steps, far finer than the pixels' 256
        words = keyed_random.bits(-(-count // 4), "noise", self.noise).astype("<u8")
        raw = words.view("<u2")[:count].reshape(len(image), self.height, self.width)
        rows = slice(self.top, self.top + self.height)
        columns = slice(self.left, self.left + self.width)
        for channel, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            image[channel, rows, columns] = _values(mean, std)[raw[channel]]


def draw(data: Images, *place: int) -> Erased | None:
    """With the recipe's probability, the first of ten boxes that is smaller than the image."""
    if data.erasing == 0:
        return None
    down, across = sides(data.image_size)
    whether, *drawn = keyed_random.uniform(1 + 4 * TRIES, "erasing", *place).tolist()
    if whether >= data.erasing:
        return None
    log_low, log_high = math.log(RATIO[0]), math.log(RATIO[1])
    for i in range(0, len(drawn), 4):
        area, ratio, x, y = drawn[i : i + 4]
        pixels = down * across * (AREA[0] + (AREA[1] - AREA[0]) * area)
        ratio = math.exp(log_low + (log_high - log_low) * ratio)
        height, width = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if width < across and height < down:
            left, top = int(x * (across - width + 1)), int(y * (down - height + 1))
            noise = keyed_random.seed("noise", *place)
            return Erased(left, top, width, height, noise, data.mean, data.std)
    return None


@functools.cache
def _values(mean: float, std: float) -> NDArray[np.uint8]:
    """The pixel value of each step of the noise."""
    return np.round(255 * np.clip(_normal() * std + mean, 0, 1)).astype(np.uint8)


@functools.cache
def _normal() -> NDArray[np.float64]:
    """The standard normal distribution in 65,536 steps, by its inverse at their middles."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse((step + 0.5) / 65536) for step in range(65536)])
