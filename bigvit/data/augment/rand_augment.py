"""RandAugment (arXiv:1909.13719) as timm does it: its operations and strengths, our draws."""

import math
from statistics import NormalDist
from typing import NamedTuple

from PIL import Image

from bigvit import keyed_random
from bigvit.data.augment.crop import RESAMPLING, Interpolation
from bigvit.recipe import RandAugment

PROBABILITY = 0.5  # that an operation, once chosen, is applied: timm's default
LEVELS = 10.0  # the strongest magnitude

# timm's names, in timm's order
OPERATIONS = (
    "AutoContrast",
    "Equalize",
    "Invert",
    "Rotate",
    "Posterize",
    "Solarize",
    "SolarizeAdd",
    "Color",
    "Contrast",
    "Brightness",
    "Sharpness",
    "ShearX",
    "ShearY",
    "TranslateXRel",
    "TranslateYRel",
)
# those of them that have a variant which grows in severity with the magnitude
INCREASING = {"Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness"}


Affine = tuple[float, float, float, float, float, float]
"""Where a place (x, y) comes from, both in shares of the sides: a x + b y + c, d x + e y + f."""

STILL: Affine = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


class Operation(NamedTuple):
    """timm's name of an operation, and its argument, if it takes one."""

    name: str
    argument: float | None


class Operations(NamedTuple):
    """What is applied, in this order; the colour of what comes in at a border; the resampling."""

    operations: tuple[Operation, ...]
    fill: tuple[int, ...]
    interpolation: Interpolation

    def apply(self, image: Image.Image) -> Image.Image:
        """The RGB image after the operations, which are timm's own functions."""
        from timm.data.auto_augment import NAME_TO_OP  # seconds to import; few recipes need it

        common = {"fillcolor": self.fill, "resample": RESAMPLING[self.interpolation]}
        for name, value in self.operations:
            arguments = () if value is None else (value,)
            image = NAME_TO_OP[name](image, *arguments, **common)
        return image

    def affines(self, size: tuple[int, int]) -> list[Affine]:
        """Where each that moves pixels of an image of (height, width) takes them from, the last
        one first."""
        height, width = size
        each = (_affine(name, value or 0.0, width / height) for name, value in self.operations)
        return [affine for affine in each if affine != STILL][::-1]


def _affine(name: str, value: float, ratio: float) -> Affine:
    """Where an operation takes a place from.

    Args:
        ratio: of the image's width to its height.
    """
    match name:
        case "ShearX":
            return (1.0, value / ratio, 0.0, 0.0, 1.0, 0.0)
        case "ShearY":
            return (1.0, 0.0, 0.0, value * ratio, 1.0, 0.0)
        case "TranslateXRel":
            return (1.0, 0.0, value, 0.0, 1.0, 0.0)
        case "TranslateYRel":
            return (1.0, 0.0, 0.0, 0.0, 1.0, value)
        case "Rotate":  # about the centre, against the clock
            cos, sin = math.cos(math.radians(value)), math.sin(math.radians(value))
            right, down = -sin / ratio, sin * ratio
            return (cos, right, (1 - cos - right) / 2, down, cos, (1 - cos - down) / 2)
        case _:
            return STILL


def draw(
    augment: RandAugment, fill: tuple[int, ...], interpolation: Interpolation, *place: int
) -> Operations | None:
    """Operations chosen with replacement, each applied with probability 1/2; None if none is.

    The strength is normal about the recipe's magnitude, clipped to [0, 10].
    """
    count = augment.operations
    found: list[Operation] = []
    drawn = keyed_random.uniform(4 * count, "augment", *place).reshape(count, 4).tolist()
    for which, whether, strength, sign in drawn:
        if whether < PROBABILITY:
            name = OPERATIONS[int(which * len(OPERATIONS))]
            if augment.increasing and name in INCREASING:
                name += "Increasing"
            # a uniform number may be 0, whose quantile is not finite
            normal = NormalDist().inv_cdf(max(strength, 2.0**-54))
            level = augment.magnitude + augment.magnitude_std * normal
            level = min(max(level, 0.0), LEVELS)
            found.append(Operation(name, argument(name, level, sign < 0.5)))
    return Operations(tuple(found), fill, interpolation) if found else None


def argument(name: str, level: float, negate: bool) -> float | None:
    """An operation's argument at a level of 0 to 10 (timm's LEVEL_TO_ARG, with our sign)."""
    share = level / LEVELS
    sign = -1 if negate else 1
    match name:
        case "AutoContrast" | "Equalize" | "Invert":
            return None
        case "Rotate":
            return sign * (share * 30.0)  # degrees
        case "Posterize":
            return int(share * 4)  # bits kept
        case "PosterizeIncreasing":
            return 4 - int(share * 4)
        case "Solarize":
            return min(256, int(share * 256))  # threshold
        case "SolarizeIncreasing":
            return 256 - min(256, int(share * 256))
        case "SolarizeAdd":
            return min(128, int(share * 110))  # added
        case "Color" | "Contrast" | "Brightness" | "Sharpness":
            return share * 1.8 + 0.1  # factor
        case (
            "ColorIncreasing"
            | "ContrastIncreasing"
            | "BrightnessIncreasing"
            | "SharpnessIncreasing"
        ):
            return max(0.1, 1.0 + sign * (share * 0.9))
        case "ShearX" | "ShearY":
            return sign * (share * 0.3)  # pixels a pixel
        case "TranslateXRel" | "TranslateYRel":
            return sign * (share * 0.45)  # of the side
        case _:
            raise AssertionError(name)
