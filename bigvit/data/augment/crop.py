"""Which part of an image becomes the input: at random to train, the centre to test."""

import math
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from bigvit import random
from bigvit.recipe import ImageSize, RandomResizedCrop, SimpleRandomCrop, sides

TRIES = 10  # of a random resized crop, before it falls back to the centre

Interpolation = Literal["bicubic", "bilinear"]
RESAMPLING = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


class ResizedCrop(NamedTuple):
    """A box of the image, pixels, and what it is resized to."""

    left: int
    top: int
    width: int
    height: int
    size: ImageSize
    interpolation: Interpolation


class SimpleCrop(NamedTuple):
    """The size that the image is resized to, its border, and where the crop lies within both."""

    width: int
    height: int
    padding: int
    left: int
    top: int
    size: ImageSize
    interpolation: Interpolation


def draw(
    crop: RandomResizedCrop | SimpleRandomCrop,
    size: ImageSize,
    image: tuple[int, int],
    *place: int,
) -> ResizedCrop | SimpleCrop:
    """A crop of `size` from an image of (width, height)."""
    match crop:
        case RandomResizedCrop():
            return _draw_resized(crop, size, *image, *place)
        case SimpleRandomCrop():
            return _draw_simple(crop, size, *image, *place)


def _draw_resized(
    crop: RandomResizedCrop, size: ImageSize, width: int, height: int, *place: int
) -> ResizedCrop:
    """A random resized crop (arXiv:1409.4842, section 6), in torchvision's way.

    Ten tries of an area, uniform within `scale`, and of a ratio, log-uniform within `ratio`, until
    the box fits; then the largest central box whose ratio is allowed.
    """
    low, high = crop.scale
    log_low, log_high = math.log(crop.ratio[0]), math.log(crop.ratio[1])
    for area, ratio, x, y in random.uniform(4 * TRIES, "crop", *place).reshape(TRIES, 4).tolist():
        pixels = width * height * (low + (high - low) * area)
        ratio = math.exp(log_low + (log_high - log_low) * ratio)
        w, h = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(x * (width - w + 1)), int(y * (height - h + 1))
            return ResizedCrop(left, top, w, h, size, crop.interpolation)
    w, h = width, height
    if width / height < crop.ratio[0]:
        h = round(width / crop.ratio[0])
    elif width / height > crop.ratio[1]:
        w = round(height * crop.ratio[1])
    return ResizedCrop((width - w) // 2, (height - h) // 2, w, h, size, crop.interpolation)


def _draw_simple(
    crop: SimpleRandomCrop, size: ImageSize, width: int, height: int, *place: int
) -> SimpleCrop:
    """A simple random crop (DeiT III, section 6.2.2), as the authors' repository does it.

    The thesis says that the square is selected along the x-axis; the repository, and this, select
    it along both. As the short side is resized to `size`, its own slack is the padding alone.
    """
    down, across = sides(size)
    w, h = _covering(down, across, width, height)
    x, y = random.uniform(2, "crop", *place).tolist()
    left = int(x * (w + 2 * crop.padding - across + 1))
    top = int(y * (h + 2 * crop.padding - down + 1))
    return SimpleCrop(w, h, crop.padding, left, top, size, crop.interpolation)


def apply(image: Image.Image, drawn: ResizedCrop | SimpleCrop) -> Image.Image:
    """The crop that was drawn."""
    resampling = RESAMPLING[drawn.interpolation]
    down, across = sides(drawn.size)
    match drawn:
        case ResizedCrop(left, top, width, height):
            # not resize(box=): that looks beyond the box
            return image.crop((left, top, left + width, top + height)).resize(
                (across, down), resampling
            )
        case SimpleCrop(width, height, padding, left, top):
            resized = np.asarray(image.resize((width, height), resampling))
            rows = _reflected(height, padding)[top : top + down]
            columns = _reflected(width, padding)[left : left + across]
            return Image.fromarray(resized[rows[:, None], columns])


def central(image: Image.Image, size: ImageSize, ratio: float) -> Image.Image:
    """The centre, once the image is resized by bicubic interpolation to cover int(size / ratio): of
    a square, the short side to it."""
    down, across = sides(size)
    width, height = _covering(int(down / ratio), int(across / ratio), *image.size)
    left, top = round((width - across) / 2), round((height - down) / 2)
    return image.resize((width, height), Image.Resampling.BICUBIC).crop(
        (left, top, left + across, top + down)
    )


def _covering(down: int, across: int, width: int, height: int) -> tuple[int, int]:
    """(width, height) of an image once it is as small as covers a box; its longer side, measured by
    the box's, is rounded down."""
    if width * down <= height * across:
        return across, int(across * height / width)
    return int(down * width / height), down


def _reflected(length: int, padding: int) -> np.ndarray:
    """Which pixel stands at each place of a line with reflected borders."""
    return np.pad(np.arange(length), padding, mode="reflect")
