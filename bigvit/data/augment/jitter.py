"""Colour jitter as torchvision's: factors, in an order that is drawn, too."""

from collections.abc import Sequence
from types import ModuleType
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from bigvit import keyed_random

Enhancement = Literal["brightness", "contrast", "saturation", "hue"]
ENHANCEMENTS: tuple[Enhancement, ...] = ("brightness", "contrast", "saturation", "hue")
ENHANCE = {
    "brightness": ImageEnhance.Brightness,
    "contrast": ImageEnhance.Contrast,
    "saturation": ImageEnhance.Color,
}


class Jitter(NamedTuple):
    """A factor of colour jitter, 1 changes nothing; of the hue a share of the circle, 0 does."""

    what: Enhancement
    factor: float

    @property
    def turn(self) -> int:
        """Of the hue: what is added to its byte, modulo 256 (torchvision: towards 0)."""
        return int(self.factor * 255) % 256

    def apply(self, image: Image.Image) -> Image.Image:
        """The RGB image after it."""
        if self.what != "hue":
            return ENHANCE[self.what](image).enhance(self.factor)
        hue, *rest = image.convert("HSV").split()
        turned = hue.point([(value + self.turn) % 256 for value in range(256)])
        return Image.merge("HSV", (turned, *rest)).convert("RGB")

    def apply_fast(self, fast: ModuleType, pixels: NDArray[np.uint8]) -> None:
        """The same of pixels (H, W, 4), in place, by the extension."""
        match self.what:
            case "brightness":
                fast.towards(pixels, 0, self.factor)
            case "contrast":
                mean = fast.lightness(pixels) / (pixels.size // 4)
                fast.towards(pixels, int(mean + 0.5), self.factor)
            case "saturation":
                fast.towards_gray(pixels, self.factor)
            case "hue":
                fast.turn(pixels, self.turn)


def draw(strengths: Sequence[float], *place: int) -> tuple[Jitter, ...]:
    """Factors within 1 +- the strengths of brightness, contrast and saturation, of a fourth one
    within +- that of the hue; those of no strength are left out."""
    count = len(strengths)
    drawn = keyed_random.uniform(2 * count, "jitter", *place).tolist()
    shares, order = drawn[:count], drawn[count:]
    found = list[Jitter]()
    for i in sorted(range(count), key=order.__getitem__):
        strength, what = strengths[i], ENHANCEMENTS[i]
        # torchvision: no factor below 0
        low, high = max(0.0, 1 - strength), 1 + strength
        if what == "hue":
            low, high = -strength, strength
        if strength > 0:
            found.append(Jitter(what, low + (high - low) * shares[i]))
    return tuple(found)
