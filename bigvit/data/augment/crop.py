"""Which part of an image becomes the input: at random to train, the centre to test."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bigvit import keyed_random
from bigvit.data.decode import Photo
from bigvit.data.photo import RESAMPLING, WHOLE, Interpolation, Part
from bigvit.recipe import ImageSize, RandomResizedCrop, SimpleRandomCrop, sides

SUPPORT = 2  # pixels that bicubic interpolation looks away, where it does not shrink
TRIES = 10  # of a random resized crop, before it falls back to the centre

Box = tuple[float, float, float, float]
"""Left, top, right and bottom, as shares of an image's width and height."""


class ResizedCrop(NamedTuple):
    """A box of the image, pixels, and what it is resized to."""

    left: int
    top: int
    width: int
    height: int
    size: ImageSize
    interpolation: Interpolation

    def part(self, size: tuple[int, int], scaled: bool = False) -> Part:
        """What it takes of an image of (width, height), which may be decoded smaller."""
        down, across = sides(self.size)
        part = Part(self[:4], (across, down), (0, 0, across, down), self.interpolation)
        return part.shrunk() if scaled else part

    def of_image(self, size: tuple[int, int]) -> Box:
        """The box in an image of (width, height)."""
        width, height = size
        right, bottom = self.left + self.width, self.top + self.height
        return (self.left / width, self.top / height, right / width, bottom / height)

    def laid_out(self, part: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The crop, made of its part."""
        return part

    def apply(self, image: Image.Image | Photo, scaled: bool = False) -> Image.Image:
        """The box, resized."""
        return self.framed(taken(image, self.part(image.size, scaled)))

    def framed(self, part: Image.Image) -> Image.Image:
        """The crop, made of its part."""
        return part


class SimpleCrop(NamedTuple):
    """The size that the image is resized to, its border, and where the crop lies within both."""

    width: int
    height: int
    padding: int
    left: int
    top: int
    size: ImageSize
    interpolation: Interpolation

    def part(self, size: tuple[int, int], scaled: bool = False) -> Part:
        """What it takes of an image of (width, height): no more is resized than it needs."""
        rows, columns = self._places()
        left, right, top, bottom = map(int, (columns.min(), columns.max(), rows.min(), rows.max()))
        window = (left, top, right + 1, bottom + 1)
        part = Part((0, 0, *size), (self.width, self.height), window, self.interpolation)
        return part.shrunk() if scaled else part

    def of_image(self, size: tuple[int, int]) -> Box:
        """What it shows of an image of any size; beyond that where it shows the border."""
        down, across = sides(self.size)
        left, top = self.left - self.padding, self.top - self.padding
        right, bottom = (left + across) / self.width, (top + down) / self.height
        return (left / self.width, top / self.height, right, bottom)

    def laid_out(self, part: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The crop (H, W, channels), made of its part."""
        if self.padding == 0:
            return part
        rows, columns = self._places()
        return part.take(rows - rows.min(), axis=0).take(columns - columns.min(), axis=1)

    def apply(self, image: Image.Image | Photo, scaled: bool = False) -> Image.Image:
        """The crop, with its border."""
        return self.framed(taken(image, self.part(image.size, scaled)))

    def framed(self, part: Image.Image) -> Image.Image:
        """The crop, made of its part."""
        return Image.fromarray(self.laid_out(np.asarray(part)))

    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which rows and columns of the resized image it shows."""
        down, across = sides(self.size)
        rows = _reflected(np.arange(self.top, self.top + down) - self.padding, self.height)
        columns = _reflected(np.arange(self.left, self.left + across) - self.padding, self.width)
        return rows, columns


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
    drawn = keyed_random.uniform(4 * TRIES, "crop", *place).reshape(TRIES, 4).tolist()
    for area, ratio, x, y in drawn:
        pixels = width * height * (low + (high - low) * area)
        ratio = math.exp(log_low + (log_high - log_low) * ratio)
        w, h = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(x * (width - w + 1)), int(y * (height - h + 1))
            return ResizedCrop(left, top, w, h, size, crop.interpolation)
    w, h = width, height
    if width / height < crop.ratio[0]:
        h = max(1, round(width / crop.ratio[0]))
    elif width / height > crop.ratio[1]:
        w = max(1, round(height * crop.ratio[1]))
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
    x, y = keyed_random.uniform(2, "crop", *place).tolist()
    left = int(x * (w + 2 * crop.padding - across + 1))
    top = int(y * (h + 2 * crop.padding - down + 1))
    return SimpleCrop(w, h, crop.padding, left, top, size, crop.interpolation)


def central(size: ImageSize, ratio: float, image: tuple[int, int]) -> Part:
    """The centre of an image of (width, height), once it is resized by bicubic interpolation to
    cover int(size / ratio): of a square, the short side to it."""
    down, across = sides(size)
    width, height = _covering(int(down / ratio), int(across / ratio), *image)
    left, top = round((width - across) / 2), round((height - down) / 2)
    window = (left, top, left + across, top + down)
    return Part((0, 0, *image), (width, height), window, "bicubic")


def decoded(image: Image.Image | Photo, shrink: int) -> tuple[Image.Image, int]:
    """All of an image, by Pillow, and how many times smaller than it is: a JPEG is decoded as much
    smaller as is asked for."""
    if isinstance(image, Image.Image):
        return image, 1
    made = image.image(shrink)
    return made, shrink if made.size != image.size else 1


def taken(image: Image.Image | Photo, part: Part, by: int = 1) -> Image.Image:
    """A part of an image, by Pillow.

    Of a long image, as 1 x 20,000, the whole would be of gigabytes once it is resized: the window
    alone is made, whose pixels are rounded in another order.

    Args:
        by: how many times smaller the image was decoded that is given.
    """
    if isinstance(image, Photo):
        image, by = decoded(image, part.shrink)
    resampling = RESAMPLING[part.interpolation]
    x, y, width, height = part.box
    box = (x // by, y // by, -(-(x + width) // by), -(-(y + height) // by))
    if box != (0, 0, *image.size):
        image = image.crop(box)  # not resize(box=) alone: that looks beyond it
    left, top, right, bottom = part.window
    if part.size[0] * part.size[1] <= WHOLE:
        corner = x / by - box[0], y / by - box[1]
        within = (*corner, corner[0] + width / by, corner[1] + height / by)
        resized = image.resize(part.size, resampling, within)
        return resized if part.window == (0, 0, *part.size) else resized.crop(part.window)
    first_x, last_x, start_x, stop_x = _span(left, right, width, part.size[0])
    first_y, last_y, start_y, stop_y = _span(top, bottom, height, part.size[1])
    near = image.crop((first_x, first_y, last_x, last_y))  # there, float32 is fine enough
    within = (start_x, start_y, stop_x, stop_y)
    return near.resize((right - left, bottom - top), resampling, box=within)


def _span(start: int, stop: int, length: int, resized: int) -> tuple[int, int, float, float]:
    """Where places from `start` to before `stop` of a line of `length` pixels come from, once it is
    resized: the first pixel that they are computed from, the one after the last, and the part
    itself, counted from that first pixel."""
    scale = length / resized
    reach = SUPPORT * max(1.0, scale) + 1
    first = max(0, math.floor(start * scale - reach))
    last = min(length, math.ceil(stop * scale + reach))
    return first, last, start * scale - first, min(stop * scale - first, last - first)


def _covering(down: int, across: int, width: int, height: int) -> tuple[int, int]:
    """(width, height) of an image once it is as small as covers a box; its longer side, measured by
    the box's, is rounded down."""
    if width * down <= height * across:
        return across, int(across * height / width)
    return int(down * width / height), down


def _reflected(places: np.ndarray, length: int) -> np.ndarray:
    """Which pixels of a line stand at places on it and on its reflected borders."""
    places = np.abs(places)
    return np.minimum(places, 2 * (length - 1) - places)
