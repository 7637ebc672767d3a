"""Photometric distortion (SSD, arXiv:1512.02325, section 2.2) as mmsegmentation has it: values are
rounded towards 0, and kept within 0 to 255, after each step.

Deviation: hue and saturation are those of Pillow's HSV, whose hue has 256 values, not OpenCV's 180.
"""

from collections.abc import Callable
from typing import NamedTuple

from PIL import Image

from bigvit import keyed_random
from bigvit.recipe import Distortion

TURN = 180  # the circle of hues, as the recipe counts it


class Distorted(NamedTuple):
    """What is done: brightness, contrast unless it comes last, saturation, hue."""

    brightness: float | None  # that is added
    contrast: float | None  # a factor
    saturation: float | None  # a factor
    hue: float | None  # that is added, of TURN
    contrast_last: bool

    def apply(self, image: Image.Image) -> Image.Image:
        """The RGB image after all of it."""
        if (more := self.brightness) is not None:
            image = image.point(_each(lambda value: value + more) * 3)
        if not self.contrast_last:
            image = self._contrasted(image)
        if self.saturation is not None or self.hue is not None:
            hue, saturation, value = image.convert("HSV").split()
            if (factor := self.saturation) is not None:
                saturation = saturation.point(_each(lambda value: factor * value))
            if self.hue is not None:
                turn = round(self.hue / TURN * 256)
                hue = hue.point([(value + turn) % 256 for value in range(256)])
            image = Image.merge("HSV", (hue, saturation, value)).convert("RGB")
        return self._contrasted(image) if self.contrast_last else image

    def _contrasted(self, image: Image.Image) -> Image.Image:
        if (factor := self.contrast) is None:
            return image
        return image.point(_each(lambda value: factor * value) * 3)


def draw(distortion: Distortion, *place: int) -> Distorted:
    """Each with a probability of 1/2, and its strength uniform within the recipe's range."""
    drawn = keyed_random.uniform(9, "distortion", *place).tolist()
    whether, shares, last = drawn[:4], drawn[4:8], drawn[8]
    most, turn = distortion.brightness, distortion.hue
    ranges = (-most, most), distortion.contrast, distortion.saturation, (-turn, turn)
    found = [
        low + (high - low) * share if chance < 0.5 else None
        for chance, share, (low, high) in zip(whether, shares, ranges, strict=True)
    ]
    return Distorted(*found, contrast_last=last < 0.5)


def _each(change: Callable[[int], float]) -> list[int]:
    """What becomes of each of 256 values."""
    return [int(min(255.0, max(0.0, change(value)))) for value in range(256)]
