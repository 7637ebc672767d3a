"""Random variations of an image: first drawn from a key, then applied.

A recipe's order: crop, flip, 3-Augment and jitter or RandAugment or what views go through, to an
array, random erasing. One key a purpose, so that what one step draws moves nothing of another.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bigvit import keyed_random
from bigvit.data.augment import crop, erasing, rand_augment, shift, three_augment, view_augment
from bigvit.data.augment.crop import Box, ResizedCrop, SimpleCrop
from bigvit.data.augment.erasing import Erased
from bigvit.data.augment.rand_augment import STILL, Affine, Operations
from bigvit.data.augment.shift import Moved
from bigvit.data.augment.three_augment import Three
from bigvit.data.augment.view_augment import Varied
from bigvit.data.decode import Photo
from bigvit.data.photo import Part, extension
from bigvit.recipe import (
    Data,
    Digits,
    Images,
    RandAugment,
    Shift,
    ThreeAugment,
    ViewAugment,
    sides,
)


class Drawn(NamedTuple):
    """Everything random about one training image, as plain numbers; None where nothing is done."""

    crop: Moved | ResizedCrop | SimpleCrop | None
    flip: bool
    augment: Three | Operations | Varied | None
    erased: Erased | None

    def box(self, size: tuple[int, int]) -> Box:
        """What it shows of an image of (width, height), before it is flipped."""
        match self.crop:
            case ResizedCrop() | SimpleCrop():
                return self.crop.of_image(size)
            case Moved(down=down, right=right):
                across, along = right / size[0], down / size[1]
                return (-across, -along, 1 - across, 1 - along)
            case None:
                return (0.0, 0.0, 1.0, 1.0)

    def affines(self, data: Data) -> list[float]:
        """Where RandAugment takes pixels of the input from: six numbers (`Affine`) for each
        operation that it may do, the last one's first, those that move nothing at the end."""
        if not isinstance(data, Images) or not isinstance(data.augment, RandAugment):
            return []
        found = list[Affine]()
        if isinstance(self.augment, Operations):
            found = self.augment.affines(sides(data.image_size))
        found += [STILL] * (data.augment.operations - len(found))
        return [number for affine in found for number in affine]


def draw(
    data: Data, seed: int, epoch: int, slot: int, size: tuple[int, int], view: int = 0
) -> Drawn:
    """The variation of the image at a slot of an epoch, whose `size` is (width, height).

    Args:
        data: of the view's group (`Data.group`).
        view: 0 for the image itself; its further views are counted from 1, through all groups.
    """
    place = (seed, epoch, slot, view) if view else (seed, epoch, slot)
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
        case _:
            raise AssertionError(f"{type(data).__name__} is drawn by data/scenes.py")


def _draw_augment(data: Images, *place: int) -> Three | Operations | Varied | None:
    match data.augment:
        case ThreeAugment():
            return three_augment.draw(data.augment, *place)
        case RandAugment():
            # timm: borders get the mean colour, and what turns is resampled as the crop is
            fill = tuple(min(255, round(255 * mean)) for mean in data.mean)
            return rand_augment.draw(data.augment, fill, data.crop.interpolation, *place)
        case ViewAugment():
            return view_augment.draw(data.augment, *place)
        case None:
            return None


def apply(image: Image.Image | Photo, drawn: Drawn, scaled: bool = False) -> NDArray[np.uint8]:
    """The varied image (C, H, W), an array of its own; of a JPEG that may be decoded smaller.

    Raises:
        BadImage: it is cut off or damaged.
    """
    return apply_all(image, [drawn], scaled)[0]


def apply_all(
    image: Image.Image | Photo, each: Sequence[Drawn], scaled: bool = False
) -> list[NDArray[np.uint8]]:
    """An image varied in several ways, each (C, H, W), an array of its own. It is decoded once; a
    JPEG, if it may be, as small as serves all of them.

    Raises:
        BadImage: it is cut off or damaged.
    """
    parts = _parts(image.size, each, scaled)
    made = _applied_fast(image, each, parts) if isinstance(image, Photo) else None
    if made is None:
        made = _applied(image, each, parts)
    for pixels, drawn in zip(made, each, strict=True):
        if drawn.erased is not None:
            drawn.erased.apply(pixels)
    return made


def _parts(size: tuple[int, int], each: Sequence[Drawn], scaled: bool) -> list[Part]:
    """What each takes of an image of (width, height), as small as serves all; none, where one is
    not cropped."""
    crops = [drawn.crop for drawn in each if isinstance(drawn.crop, ResizedCrop | SimpleCrop)]
    if len(crops) < len(each):
        return []
    parts = [crop.part(size, scaled) for crop in crops]
    least = min(part.shrink for part in parts)
    return [part._replace(shrink=least) for part in parts]


def _applied(
    image: Image.Image | Photo, each: Sequence[Drawn], parts: Sequence[Part]
) -> list[NDArray[np.uint8]]:
    whole, by = crop.decoded(image, parts[0].shrink if parts else 1)
    made = list[NDArray[np.uint8]]()
    for i, drawn in enumerate(each):
        match drawn.crop:
            case ResizedCrop() | SimpleCrop():
                cut = drawn.crop.framed(crop.taken(whole, parts[i], by))
            case Moved():
                cut = drawn.crop.apply(whole)
            case None:
                cut = whole
        made.append(_array(_augmented(cut, drawn)))
    return made


def _augmented(image: Image.Image, drawn: Drawn) -> Image.Image:
    if drawn.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image if drawn.augment is None else drawn.augment.apply(image)


def _applied_fast(
    image: Photo, each: Sequence[Drawn], parts: Sequence[Part]
) -> list[NDArray[np.uint8]] | None:
    """The same of no more of the image than the crops need, if it can be had so."""
    fast = extension()
    if fast is None or not parts or (cut := image.parts(parts)) is None:
        return None
    return [_varied_fast(fast, pixels, drawn) for pixels, drawn in zip(cut, each, strict=True)]


def _varied_fast(fast: ModuleType, pixels: NDArray[np.uint8], drawn: Drawn) -> NDArray[np.uint8]:
    """The varied image, made of its part (H, W, 4)."""
    if isinstance(drawn.crop, ResizedCrop | SimpleCrop):
        pixels = drawn.crop.laid_out(pixels)
    match drawn.augment:
        case Three() | Varied():
            drawn.augment.apply_fast(fast, pixels)
        case Operations():
            return _array(_augmented(Image.fromarray(pixels[..., :3]), drawn))
        case None:
            pass
    return _planes(fast, pixels, drawn.flip)


def test_image(image: Image.Image | Photo, data: Data) -> NDArray[np.uint8]:
    """The image (C, H, W) as it is tested: resized and cropped at its centre, nothing random.

    Raises:
        BadImage: it is cut off or damaged.
    """
    if isinstance(data, Digits):
        if isinstance(image, Photo):  # a file's, of any size and in colour
            height, width = sides(data.image_size)
            image = image.image().convert("L").resize((width, height), Image.Resampling.BICUBIC)
        return _array(image)
    ratio = data.test_crop_ratio if isinstance(data, Images) else 1.0  # scenes are measured whole
    part = crop.central(data.image_size, ratio, image.size)
    if isinstance(image, Photo):
        pixels = image.part(part)
        if pixels is not None and (fast := extension()) is not None:
            return _planes(fast, pixels, False)
    return _array(crop.taken(image, part))


def _planes(fast: ModuleType, pixels: NDArray[np.uint8], flipped: bool) -> NDArray[np.uint8]:
    """(3, H, W) of pixels (H, W, 4)."""
    height, width, _ = pixels.shape
    out = np.empty((3, height, width), np.uint8)
    fast.planes(pixels, width, height, flipped, out)
    return out


def _array(image: Image.Image) -> NDArray[np.uint8]:
    """(C, H, W), contiguous and writable."""
    pixels = np.asarray(image)
    return pixels[None].copy() if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy()
