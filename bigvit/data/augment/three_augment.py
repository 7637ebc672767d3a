"""3-Augment and colour jitter (DeiT III, section 6.2.2): one of three operations, then jitter."""

from types import ModuleType
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter, ImageOps

from bigvit import keyed_random
from bigvit.data.augment import jitter
from bigvit.data.augment.jitter import Jitter
from bigvit.recipe import ThreeAugment

Choice = Literal["grayscale", "solarize", "blur"]
CHOICES: tuple[Choice, ...] = ("grayscale", "solarize", "blur")
RADII = (0.1, 2.0)  # of the blur, pixels: the authors' repository
THRESHOLD = 128  # solarizing inverts the values from here on
STRENGTHS = 3  # of jitter: brightness, contrast, saturation


class Three(NamedTuple):
    """The operation, the radius if it is a blur, and the jitter in its order."""

    choice: Choice
    radius: float | None
    jitter: tuple[Jitter, ...]

    def apply(self, image: Image.Image) -> Image.Image:
        """The RGB image after the operation and the jitter."""
        match self:
            case Three("grayscale"):
                image = image.convert("L").convert("RGB")
            case Three("solarize"):
                image = ImageOps.solarize(image, THRESHOLD)
            case Three("blur", float(radius)):
                image = image.filter(ImageFilter.GaussianBlur(radius))
            case _:
                raise AssertionError(self)
        for each in self.jitter:
            image = each.apply(image)
        return image

    def apply_fast(self, fast: ModuleType, pixels: NDArray[np.uint8]) -> None:
        """The same of pixels (H, W, 4), in place, by the extension."""
        match self:
            case Three("grayscale"):
                fast.gray(pixels)
            case Three("solarize"):
                fast.solarize(pixels, THRESHOLD)
            case Three("blur", float(radius)):
                fast.blur(pixels, pixels.shape[1], pixels.shape[0], radius)
            case _:
                raise AssertionError(self)
        for each in self.jitter:
            each.apply_fast(fast, pixels)


def draw(augment: ThreeAugment, *place: int) -> Three:
    """One operation of three, equally likely, and jitter by factors within 1 +- its strength."""
    which, where = keyed_random.uniform(2, "augment", *place).tolist()
    choice = CHOICES[int(which * len(CHOICES))]
    radius = RADII[0] + (RADII[1] - RADII[0]) * where if choice == "blur" else None
    strength = augment.color_jitter
    return Three(choice, radius, jitter.draw([strength] * STRENGTHS, *place))
