"""Random variations of an image: first drawn from a key, then applied.

A recipe's order: crop, flip, 3-Augment and jitter or RandAugment, to an array, random erasing. One
key a purpose, so that what one step draws moves nothing of another.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bigvit import keyed_random
from bigvit.data.augment import crop, erasing, rand_augment, shift, three_augment
from bigvit.data.augment.crop import ResizedCrop, SimpleCrop
from bigvit.data.augment.erasing import Erased
from bigvit.data.augment.rand_augment import Operations
from bigvit.data.augment.shift import Moved
from bigvit.data.augment.three_augment import Three
from bigvit.recipe import Data, Digits, Images, RandAugment, Shift, ThreeAugment


class Drawn(NamedTuple):
    """Everything random about one training image, as plain numbers; None where nothing is done."""

    crop: Moved | ResizedCrop | SimpleCrop | None
    flip: bool
    augment: Three | Operations | None
    erased: Erased | None


def draw(data: Data, seed: int, epoch: int, slot: int, size: tuple[int, int]) -> Drawn:
    """The variation of the image at a slot of an epoch, whose `size` is (width, height)."""
    place = (seed, epoch, slot)
    match data:
        case Digits(augment=Shift(pixels=pixels)):
            return Drawn(shift.draw(pixels, *place), False, None, None)
        case Digits():
            return Drawn(None, False, None, None)
        case Images():
            return Drawn(
                crop.draw(data.crop, data.image_size, size, *place),
                bool(keyed_random.uniform(1, "flip", *place)[0] < data.flip),
                _draw_augment(data, *place),
                erasing.draw(data, *place),
            )


def _draw_augment(data: Images, *place: int) -> Three | Operations | None:
    match data.augment:
        case ThreeAugment():
            return three_augment.draw(data.augment, *place)
        case RandAugment():
            # timm: borders get the mean colour, and what turns is resampled as the crop is
            fill = tuple(min(255, round(255 * mean)) for mean in data.mean)
            return rand_augment.draw(data.augment, fill, data.crop.interpolation, *place)
        case None:
            return None


def apply(image: Image.Image, drawn: Drawn) -> NDArray[np.uint8]:
    """The varied image (C, H, W), an array of its own."""
    if drawn.crop is not None:
        image = drawn.crop.apply(image)
    if drawn.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if drawn.augment is not None:
        image = drawn.augment.apply(image)
    pixels = _array(image)
    if drawn.erased is not None:
        drawn.erased.apply(pixels)
    return pixels


def test_image(image: Image.Image, data: Data) -> NDArray[np.uint8]:
    """The image (C, H, W) as it is tested: resized and cropped at its centre, nothing random."""
    match data:
        case Digits():
            return _array(image)
        case Images():
            return _array(crop.central(image, data.image_size, data.test_crop_ratio))


def _array(image: Image.Image) -> NDArray[np.uint8]:
    """(C, H, W), contiguous and writable."""
    pixels = np.asarray(image)
    return pixels[None].copy() if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy()
