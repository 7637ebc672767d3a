"""Images with a class for each pixel: what is drawn for one, and done to it and its map alike; and
whole ones, of any size, to be tested.

Images are resized as Pillow does it (bilinear, with as wide a filter as they are made smaller), and
classes are those of the nearest pixel, measured between centres. Deviation: mmcv, by OpenCV, looks
at four pixels however much smaller an image becomes, and takes classes from pixels up to half an
output pixel to the upper left of their place in the image.

Shapes: C channels, H x W pixels of the image or its map, h x w of what is seen of it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

from bigvit import keyed_random
from bigvit.data.augment import crop, distortion
from bigvit.data.augment.distortion import Distorted
from bigvit.data.decode import BadImage, Photo, Unread
from bigvit.data.photo import Part
from bigvit.data.sample import Sample, TestIndex, TrainIndex
from bigvit.data.sources.segmentation import Labelled
from bigvit.data.sources.source import Source
from bigvit.recipe import Segmentation, sides
from bigvit.recipe.scene import UNTOLD

Window = tuple[int, int, int, int]
"""Left, top, right, bottom, pixels."""

TRIES = 10  # of another crop, where one class fills the first


class Drawn(NamedTuple):
    """Everything random about one training image, as plain numbers."""

    size: tuple[int, int]  # width, height that it is resized to
    window: Window  # the crop within that
    flip: bool
    distorted: Distorted | None


def fitted(data: Segmentation, size: tuple[int, int], factor: float = 1.0) -> tuple[int, int]:
    """(width, height) of an image of another such size, resized to fit `longest` x `shortest`, each
    times a factor (mmcv's `imrescale`)."""
    long, short = (max(1, int(factor * side)) for side in (data.longest, data.shortest))
    by = min(max(long, short) / max(size), min(long, short) / min(size))
    width, height = (max(1, int(side * by + 0.5)) for side in size)
    return width, height


def draw(data: Segmentation, seed: int, epoch: int, slot: int, labels: NDArray[np.uint8]) -> Drawn:
    """The variation of the image at a slot of an epoch, of which all classes (H, W) are known."""
    place = (seed, epoch, slot)
    low, high = data.factor
    factor = low + (high - low) * float(keyed_random.uniform(1, "factor", *place)[0])
    size = fitted(data, labels.shape[::-1], factor)
    corners = keyed_random.uniform(2 * (TRIES + 1), "crop", *place).reshape(-1, 2).tolist()
    window = _window(size, data, *corners[0])
    for further in corners[1:]:
        if data.most_of_one == 1 or _varied(nearest(labels, size, window), data.most_of_one):
            break
        window = _window(size, data, *further)
    flip = bool(keyed_random.uniform(1, "flip", *place)[0] < data.flip)
    how = None if data.distortion is None else distortion.draw(data.distortion, *place)
    return Drawn(size, window, flip, how)


def _window(size: tuple[int, int], data: Segmentation, x: float, y: float) -> Window:
    """A crop of an image of (width, height) at shares of the room that it has there."""
    (width, height), (down, across) = size, sides(data.image_size)
    left = int(x * (max(0, width - across) + 1))
    top = int(y * (max(0, height - down) + 1))
    return left, top, min(width, left + across), min(height, top + down)


def _varied(labels: NDArray[np.uint8], most: float) -> bool:
    """Whether there is more than one class, and none has more than a share of what is told."""
    counts = np.bincount(labels.reshape(-1), minlength=UNTOLD + 1)[:UNTOLD]
    return bool(np.count_nonzero(counts) > 1 and counts.max() < most * counts.sum())


def nearest(labels: NDArray[np.uint8], size: tuple[int, int], window: Window) -> NDArray[np.uint8]:
    """Classes (h, w) in a window of a map (H, W) that is resized to (width, height)."""
    left, top, right, bottom = window
    (down, across), (width, height) = labels.shape, size
    rows = (2 * np.arange(top, bottom) + 1) * down // (2 * height)
    columns = (2 * np.arange(left, right) + 1) * across // (2 * width)
    return labels[rows[:, None], columns]


def apply(image: Image.Image | Photo, drawn: Drawn) -> NDArray[np.uint8]:
    """What is seen of an image (3, h, w).

    Raises:
        BadImage: it is cut off or damaged.
    """
    seen = _seen(image, drawn.size, drawn.window)
    if drawn.flip:
        seen = seen.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if drawn.distorted is not None:
        seen = drawn.distorted.apply(seen)
    return _planes(seen)


def apply_to_labels(labels: NDArray[np.uint8], drawn: Drawn) -> NDArray[np.uint8]:
    """Their classes (h, w), of a map (H, W)."""
    seen = nearest(labels, drawn.size, drawn.window)
    return seen[:, ::-1] if drawn.flip else seen


def _seen(image: Image.Image | Photo, size: tuple[int, int], window: Window) -> Image.Image:
    """A window of an image that is resized to (width, height); no more is decoded than it needs."""
    part = Part((0, 0, *image.size), size, window, "bilinear")
    pixels = image.part(part) if isinstance(image, Photo) else None
    if pixels is None:
        return crop.taken(image, part)
    return Image.fromarray(np.ascontiguousarray(pixels[..., :3]))


def _planes(image: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(image).transpose(2, 0, 1)


def train_sample(source: Source, data: Segmentation, seed: int, place: TrainIndex) -> Sample:
    """The image of a place with its classes, varied as drawn for it.

    Raises:
        BadImage: it, or its map, cannot be read.
    """
    epoch, slot, id = place
    image = source.open(id)
    labels = cast(Labelled, source).labels(id, image.size)
    drawn = draw(data, seed, epoch, slot, labels)
    pixels = apply(image, drawn)
    return _laid_out(data, pixels, apply_to_labels(labels, drawn), id, slot, True)


def test_sample(source: Source, data: Segmentation, place: TestIndex) -> Sample:
    """The centre of an image with its classes, nothing of it at random. (What is measured is seen
    whole: `whole_scenes`.)

    Raises:
        BadImage: it, or its map, cannot be read.
    """
    id, real = place
    image = source.open(id)
    labels = cast(Labelled, source).labels(id, image.size)
    size = fitted(data, image.size)
    drawn = Drawn(size, _window(size, data, 0.5, 0.5), False, None)
    pixels = apply(image, drawn)
    return _laid_out(data, pixels, apply_to_labels(labels, drawn), id, id, real)


def _laid_out(
    data: Segmentation,
    pixels: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    id: int,
    slot: int,
    real: bool,
) -> Sample:
    """In the upper left corner of what goes into a batch."""
    down, across = sides(data.image_size)
    height, width = labels.shape
    image = np.zeros((3, down, across), np.uint8)
    classes = np.full((down, across), UNTOLD, np.uint8)
    image[:, :height, :width], classes[:height, :width] = pixels, labels
    return Sample(image, id, slot, real, (), size=(height, width), labels=classes)


class WholeScene(NamedTuple):
    """A test image as a whole; of a bad one, nothing."""

    id: int
    images: list[NDArray[np.uint8]]  # (3, h, w) at each scale
    labels: NDArray[np.uint8]  # (H, W) at its own size

    @property
    def bad(self) -> bool:
        return not self.images


class WholeScenes(Dataset["WholeScene | Unread"]):
    """Test images by number, as wholes."""

    def __init__(self, source: Source, data: Segmentation, scales: Sequence[float]) -> None:
        """
        Args:
            scales: factors of the data's `longest` and `shortest` at which each is seen.
        """
        self.source, self.data, self.scales = source, data, scales

    def __getitem__(self, id: int) -> "WholeScene | Unread":
        try:
            image = self.source.open(id)
            labels = cast(Labelled, self.source).labels(id, image.size)
            whole = image.image() if isinstance(image, Photo) else image
            return WholeScene(id, list(self._resized(whole)), labels)
        except BadImage:
            return WholeScene(id, [], np.zeros((0, 0), np.uint8))
        except Unread as error:  # raised, torch would write its own story around it
            return error

    def _resized(self, image: Image.Image) -> Iterator[NDArray[np.uint8]]:
        for scale in self.scales:
            size = fitted(self.data, image.size, scale)
            yield _planes(_seen(image, size, (0, 0, *size))).copy()
