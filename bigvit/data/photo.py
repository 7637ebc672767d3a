"""Photographs of which no more is decoded than a crop needs.

JPEGs go by an extension of ours (bigvit/csrc): decoding the region, resizing, 3-Augment and jitter,
to Pillow's pixels, bit for bit. Where it was not built, or gives other pixels than the Pillow that
is installed, Pillow does all; and Pillow does whatever is no plain JPEG, or has a fault.

Shapes: H x W pixels, of red, green, blue and a byte that nobody reads.
"""

import io
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, ImageFilter

Interpolation = Literal["bicubic", "bilinear"]
RESAMPLING = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
WHOLE = 1 << 24  # pixels of a resized image up to which all of it is made, and not a window alone
DOWN_FIRST = int(PIL.__version__.partition(".")[0]) >= 13  # resizes tall images along columns first


class Part(NamedTuple):
    """A window of a box of an image, once the box is resized. All in pixels, of the whole image."""

    box: tuple[int, int, int, int]  # left, top, width, height
    size: tuple[int, int]  # width, height of the resized box
    window: tuple[int, int, int, int]  # left, top, right, bottom
    interpolation: Interpolation
    shrink: int = 1  # how many times smaller a JPEG is decoded first: 1, 2, 4 or 8

    def shrunk(self) -> "Part":
        """The same of a JPEG that is decoded as small as leaves no less than the resized box."""
        (across, down), (width, height) = self.box[2:], self.size
        most = min(across // width, down // height)
        return self._replace(shrink=max(by for by in (1, 2, 4, 8) if by == 1 or by <= most))


@cache
def extension() -> ModuleType | None:
    """The extension, if it was built and gives this Pillow's pixels."""
    try:
        from bigvit.data import _pixels
    except ImportError:
        return None
    return _pixels if _agrees(_pixels) else None


def without() -> str:
    """Why there is no extension, and what to do; empty where there is."""
    if extension() is not None:
        return ""
    try:
        from bigvit.data import _pixels  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        why = (
            "the extension was not built: install a C compiler and libjpeg-turbo's headers "
            "(libjpeg-dev), and bigvit again"
        )
    else:
        why = f"the extension gives other pixels than Pillow {PIL.__version__}"
    return f"images are decoded by Pillow alone, at half the speed or less; {why}"


def parts_of(content: bytes, parts: Sequence[Part]) -> list[NDArray[np.uint8]] | None:
    """Parts of a JPEG, each (H, W, 4), which is decoded once, as small as all say; None: Pillow is
    to be asked."""
    pixels = extension()
    return None if pixels is None else _parts_of(pixels, content, parts)


def _parts_of(
    pixels: ModuleType, content: bytes, parts: Sequence[Part]
) -> list[NDArray[np.uint8]] | None:
    if any(part.size[0] * part.size[1] > WHOLE for part in parts):
        return None
    (by,) = {part.shrink for part in parts}
    found, wanted = list[NDArray[np.uint8]](), list[tuple[Any, ...]]()
    for part in parts:
        left, top, right, bottom = part.window
        found.append(np.empty((bottom - top, right - left, 4), np.uint8))
        bicubic = part.interpolation == "bicubic"
        wanted.append((*part[:3], bicubic, _down_first(part), found[-1]))
    return found if pixels.resized(content, by, tuple(wanted)) else None


def _down_first(part: Part) -> bool:
    """Whether Pillow resizes it along columns first."""
    (x, y, across, down), (width, height), by = part.box, part.size, part.shrink
    if by > 1:
        across, down = -(-(x + across) // by) - x // by, -(-(y + down) // by) - y // by
    return DOWN_FIRST and down > height and down - height > 2 * (across - width)


def _agrees(pixels: ModuleType) -> bool:
    """Whether it gives Pillow's pixels, of a small image decoded smaller or not, cropped, resized
    and blurred."""
    ramp = np.add.outer(np.arange(130) ** 2, 7 * np.arange(97))
    image = Image.fromarray(np.stack([ramp % 251, ramp // 9 % 256, ramp % 83 * 3], -1).astype("u1"))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=80, subsampling=2)
    for left, top, width, height, by in (
        (13, 20, 71, 33, 1),
        (33, 7, 30, 121, 1),
        (8, 2, 80, 96, 2),
    ):
        box = (left, top, width, height)
        part = Part(box, (16, 24), (0, 0, 16, 24), "bicubic", by)
        made = _parts_of(pixels, stream.getvalue(), [part])
        image = Image.open(io.BytesIO(stream.getvalue()))
        image.draft(image.mode, (image.width // by, image.height // by))
        box = (left // by, top // by, (left + width) // by, (top + height) // by)
        wanted = image.convert("RGB").crop(box).resize((16, 24), Image.Resampling.BICUBIC)
        if made is None or not np.array_equal((found := made[0])[..., :3], np.asarray(wanted)):
            return False
        pixels.blur(found, 16, 24, 1.3)
        blurred = wanted.filter(ImageFilter.GaussianBlur(1.3))
        if not np.array_equal(found[..., :3], np.asarray(blurred)):
            return False
    return True
