"""What views for self-supervised training go through (BYOL, arXiv:2006.07733, appendix B; DINO,
arXiv:2104.14294): colour jitter, grayscale, Gaussian blur, solarize, each with a probability."""

from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter, ImageOps

from bigvit import keyed_random
from bigvit.data.augment import jitter
from bigvit.data.augment.jitter import Jitter
from bigvit.recipe import ViewAugment

RADII = (0.1, 2.0)  # of the blur, pixels, uniform (both papers)
THRESHOLD = 128  # solarizing inverts the values from here on


class Varied(NamedTuple):
    """What is done, in this order."""

    jitter: tuple[Jitter, ...]  # in its order
    gray: bool
    radius: float | None  # of the blur, pixels
    solarized: bool

    def apply(self, image: Image.Image) -> Image.Image:
        """The RGB image after all of it."""
        for each in self.jitter:
            image = each.apply(image)
        if self.gray:
            image = image.convert("L").convert("RGB")
        if self.radius is not None:
            image = image.filter(ImageFilter.GaussianBlur(self.radius))
        return ImageOps.solarize(image, THRESHOLD) if self.solarized else image

    def apply_fast(self, fast: ModuleType, pixels: NDArray[np.uint8]) -> None:
        """The same of pixels (H, W, 4), in place, by the extension."""
        for each in self.jitter:
            each.apply_fast(fast, pixels)
        if self.gray:
            fast.gray(pixels)
        if self.radius is not None:
            fast.blur(pixels, pixels.shape[1], pixels.shape[0], self.radius)
        if self.solarized:
            fast.solarize(pixels, THRESHOLD)


def draw(augment: ViewAugment, *place: int) -> Varied:
    """Each by its own probability."""
    jittered, gray, blurred, where, solarized = keyed_random.uniform(5, "augment", *place).tolist()
    strengths = augment.brightness, augment.contrast, augment.saturation, augment.hue
    return Varied(
        jitter.draw(strengths, *place) if jittered < augment.jitter else (),
        gray < augment.grayscale,
        RADII[0] + (RADII[1] - RADII[0]) * where if blurred < augment.blur else None,
        solarized < augment.solarize,
    )
