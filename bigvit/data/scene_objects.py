"""Images with objects: what is drawn for one, and done to it, its boxes and masks alike.

An image is resized as torchvision's and detectron2's are: its shorter side to the one drawn, unless
its longer one would be above `longest`. Pillow's bilinear filter; masks by the nearest pixel, as
Pillow has it. An object of whose mask nothing is left is left out (detectron2).

Shapes: C channels, H x W pixels of the canvas, h x w of what the image covers of it.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bigvit import keyed_random
from bigvit.data.decode import BadImage, Photo
from bigvit.data.objects import OwnObjects
from bigvit.data.photo import Part, extension
from bigvit.data.sample import Sample, TestIndex, TrainIndex
from bigvit.data.sources.coco import CocoSource, Found
from bigvit.recipe import Detection

Size = tuple[int, int]


class Drawn(NamedTuple):
    """Everything random about one training image, as plain numbers."""

    size: Size  # (height, width) that it is resized to, pixels
    flip: bool


def fitted(size: Size, shortest: int, longest: int) -> Size:
    """(height, width) of an image of such a size once its shorter side is `shortest`, or its longer
    one `longest` where that would be above it."""
    by = shortest / min(size)
    if max(size) * by > longest:
        by = longest / max(size)
    height, width = (min(longest, max(1, int(side * by + 0.5))) for side in size)
    return height, width


def draw(data: Detection, seed: int, epoch: int, slot: int, size: Size) -> Drawn:
    """The variation of the image at a slot of an epoch, which is of (height, width)."""
    place = (seed, epoch, slot)
    side = int(keyed_random.uniform(1, "shortest", *place)[0] * len(data.shortest))
    flip = bool(keyed_random.uniform(1, "flip", *place)[0] < data.flip)
    return Drawn(fitted(size, data.shortest[side], data.longest), flip)


def train_sample(source: CocoSource, data: Detection, seed: int, place: TrainIndex) -> Sample:
    """The image of a place with its objects, varied as drawn for it.

    Raises:
        BadImage: it cannot be read, or is of another size than its list says.
    """
    epoch, slot, id = place
    photo, size = _opened(source, id)
    drawn = draw(data, seed, epoch, slot, size)
    pixels = on_canvas(photo, drawn, data)
    return Sample(
        pixels, id, slot, True, (), size=drawn.size, objects=moved(source.objects(id), size, drawn)
    )


def test_sample(source: CocoSource, data: Detection, place: TestIndex) -> Sample:
    """The image of a place, nothing of it at random. Raises as `train_sample`."""
    photo, size = _opened(source, place.id)
    drawn = Drawn(fitted(size, data.test_shortest, data.longest), False)
    pixels = on_canvas(photo, drawn, data)
    return Sample(pixels, place.id, place.id, place.real, (), size=drawn.size)


def _opened(source: CocoSource, id: int) -> tuple[Photo, Size]:
    photo, size = source.open(id), source.size(id)
    if photo.size != size[::-1]:
        width, height = photo.size
        said = f"{size[1]} x {size[0]}"
        raise BadImage(photo.name, f"is of {width} x {height} pixels, and its list says {said}")
    return photo, size


def on_canvas(photo: Photo, drawn: Drawn, data: Detection) -> NDArray[np.uint8]:
    """The canvas (C, H, W): the varied image in its upper left corner, 0 elsewhere."""
    height, width = drawn.size
    part = Part((0, 0, *photo.size), (width, height), (0, 0, width, height), "bilinear")
    standing = photo.size[1] > photo.size[0]
    canvas = np.zeros((data.channels, *data.canvas(standing)), np.uint8)
    pixels = photo.part(part) if extension() is not None else None
    if pixels is None:
        resized = photo.image().resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(resized)
    pixels = pixels[:, ::-1] if drawn.flip else pixels
    canvas[:, :height, :width] = pixels[..., :3].transpose(2, 0, 1)
    return canvas


def moved(found: Found, size: Size, drawn: Drawn) -> OwnObjects:
    """Objects of an image of (height, width), as the varied image shows them."""
    (height, width), (h, w) = size, drawn.size
    rows, columns = _nearest(height, h), _nearest(width, w)
    if drawn.flip:
        columns = columns[::-1]
    frames, bits, kept = list[tuple[int, ...]](), list[NDArray[np.uint8]](), list[int]()
    for number, mask in enumerate(found.masks):
        down, across = _span(mask.max(1)[rows]), _span(mask.max(0)[columns])
        seen = mask[rows[slice(*down)]][:, columns[slice(*across)]]
        # smaller again where what reached furthest fell between the pixels
        top, bottom = _span(seen.any(1))
        left, right = _span(seen.any(0))
        if top == bottom:
            continue
        kept.append(number)
        frames.append((across[0] + left, down[0] + top, right - left, bottom - top))
        bits.append(np.packbits(seen[top:bottom, left:right].reshape(-1)))
    boxes = found.boxes[kept] * np.array([w / width, h / height] * 2)
    if drawn.flip:
        boxes = np.stack([w - boxes[:, 2], boxes[:, 1], w - boxes[:, 0], boxes[:, 3]], 1)
    return OwnObjects(
        boxes.astype(np.float32),
        found.classes[kept],
        np.array(frames, np.int64).reshape(-1, 4),
        bits,
    )


def _nearest(length: int, resized: int) -> NDArray[np.int64]:
    """Which pixel of a line of `length` each of its `resized` ones shows: Pillow is asked, as it
    adds up the places that others multiply."""
    line = Image.fromarray(np.arange(length, dtype=np.int32)[None])
    return np.asarray(line.resize((resized, 1), Image.Resampling.NEAREST))[0].astype(np.int64)


def _span(there: Any) -> tuple[int, int]:
    """The first place that is, and the one behind the last."""
    places = np.flatnonzero(there)
    return (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
