"""Images, boxes and masks of objects are varied together, pixel for pixel."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cocos
import numpy as np
import pictures
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as theirs
from torchvision.tv_tensors import BoundingBoxes

from bigvit.data import sample as samples
from bigvit.data import scene_objects
from bigvit.data.batch import Batch, Draws
from bigvit.data.decode import BadImage
from bigvit.data.loader import train_batches
from bigvit.data.objects import OwnObjects
from bigvit.data.sample import TrainIndex
from bigvit.recipe import Detection, batch_layout

KEYS = 500
DATA = {(96, 96): cocos.DATA, (64, 96): cocos.OBLONG}
"""By the canvas of images that lie."""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("coco")
    cocos.write(root, "train", range(26))
    cocos.write(root, "val", range(100, 110))
    return root


def masks_of(own: OwnObjects, size: tuple[int, int]) -> list[np.ndarray]:
    """As wide as the canvas."""
    found = []
    for (left, top, width, height), bits in zip(own.frames, own.bits, strict=True):
        mask = np.zeros(size, np.bool_)
        own_bits = np.unpackbits(bits, count=width * height)
        mask[top : top + height, left : left + width] = own_bits.reshape(height, width)
        found.append(mask)
    return found


@pytest.mark.parametrize(("lying", "keys"), [((96, 96), KEYS), ((64, 96), KEYS // 4)])
def test_image_masks_and_boxes_move_together(lying, keys, root):
    """Against Pillow and torchvision, over 500 keys: what is done to the image is done to pictures
    of the masks, and to the boxes. On the turned canvas, too."""
    train, _ = cocos.opened(root)
    data, seen, shapes = DATA[lying], set(), set()
    for key in range(keys):
        id = key % len(train)
        sample = scene_objects.train_sample(train, data, 5, TrainIndex(key // 24, key, id))
        photo, found = train.read(id), train.objects(id)
        drawn = scene_objects.draw(data, 5, key // 24, key, (photo.height, photo.width))
        (h, w), flip = drawn
        seen.add((min(drawn.size), flip))
        size = lying[::-1] if photo.height > photo.width else lying
        shapes.add(size)

        def varied(image, how, to=(w, h), flip=flip):
            image = image.resize(to, how)
            return np.asarray(theirs.hflip(image) if flip else image)

        canvas = np.zeros((*size, 3), np.uint8)
        canvas[:h, :w] = varied(photo, Image.Resampling.BILINEAR)
        assert np.array_equal(sample.image.transpose(1, 2, 0), canvas)
        assert sample.size == (h, w) and sample.objects is not None
        own = masks_of(sample.objects, size)
        wanted = [np.zeros(size, np.bool_) for _ in found.masks]
        for mask, whole in zip(found.masks, wanted, strict=True):
            whole[:h, :w] = varied(Image.fromarray(mask), Image.Resampling.NEAREST)
        assert np.array_equal(own, wanted)
        for (left, top, width, height), mask in zip(sample.objects.frames, own, strict=True):
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            assert (left, top) == (columns[0], rows[0])
            assert (left + width, top + height) == (columns[-1] + 1, rows[-1] + 1)
        whole: Any = BoundingBoxes
        size = photo.height, photo.width
        boxes = whole(found.boxes, format="XYXY", canvas_size=size)
        boxes = theirs.resize(boxes, [h, w])
        boxes = theirs.hflip(boxes) if flip else boxes
        assert sample.objects.boxes == pytest.approx(boxes.numpy(), abs=1e-4)
        assert sample.objects.classes.tolist() == found.classes.tolist()
    assert seen == {(side, flip) for side in (48, 56, 64) for flip in (False, True)}
    assert shapes == {lying, lying[::-1]}


def test_a_longer_side_is_at_most_the_longest(root):
    assert scene_objects.fitted((480, 640), 800, 1333) == (800, 1067)
    assert scene_objects.fitted((640, 480), 800, 1333) == (1067, 800)
    assert scene_objects.fitted((200, 640), 800, 1333) == (417, 1333)
    assert scene_objects.fitted((1, 64), 800, 1333) == (21, 1333)
    assert scene_objects.fitted((3, 1000), 2, 5) == (1, 5)


def test_masks_too_small_to_be_seen_are_left_out(root):
    train, _ = cocos.opened(root)
    tiny = replace(cocos.DATA, shortest=(1,), longest=1)
    found = scene_objects.train_sample(train, tiny, 0, TrainIndex(0, 0, 0)).objects
    assert found is not None and len(found.classes) <= len(train.objects(0).classes)
    assert len(found.classes) == len(found.boxes) == len(found.frames) == len(found.bits)
    empty = train.objects(0)._replace(masks=[np.zeros_like(m) for m in train.objects(0).masks])
    drawn = scene_objects.Drawn((9, 9), True)
    assert scene_objects.moved(empty, train.size(0), drawn).boxes.shape == (0, 4)


def test_a_test_image_is_resized_alone(root):
    _, test = cocos.opened(root)
    sample = scene_objects.test_sample(test, cocos.DATA, samples.TestIndex(3, True))
    photo = test.read(3)
    h, w = scene_objects.fitted((photo.height, photo.width), 64, 96)
    wanted = np.asarray(photo.resize((w, h), Image.Resampling.BILINEAR))
    assert sample.size == (h, w) and max(h, w) <= 96
    assert np.array_equal(sample.image[:, :h, :w].transpose(1, 2, 0), wanted)
    assert not sample.image[:, h:].any() and not sample.image[:, :, w:].any()


def stream(
    root: Path, data: Detection, world: int, micro: int, workers: int, first: int
) -> list[list[bytes]]:
    """Of each global batch from the first on, what all ranks see of each image."""
    train, _ = cocos.opened(root)
    recipe = replace(pictures.RECIPE, data=data, batch_size=8)
    layout = batch_layout(recipe, world, micro)
    ranks = [
        list(train_batches(train, recipe, layout, r, workers, first, lambda *_: Draws(None, ())))
        for r in range(world)
    ]
    return [
        [seen for rank in pieces for batch in rank for seen in each(batch)]
        for pieces in zip(*ranks, strict=True)
    ]


def each(batch: Batch) -> Iterator[bytes]:
    """All that is known of each image of a micro-batch."""
    assert batch.objects is not None and batch.sizes is not None
    of, boxes, classes, frames, starts, bits = batch.objects
    assert of.tolist() == sorted(of.tolist())
    for i in range(len(batch.images)):
        parts = [torch.tensor(batch.images[i].shape), batch.images[i], batch.sizes[i]]
        parts += [known[of == i] for known in (boxes, classes, frames)]
        for start, (_, _, width, height) in zip(starts[of == i], frames[of == i], strict=True):
            parts.append(bits[start : start + -(-width * height // 8)])
        yield b"".join(part.contiguous().numpy().tobytes() for part in parts)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("lying", DATA)
def test_the_same_on_any_ranks_workers_and_from_any_batch_on(lying, root):
    straight = stream(root, DATA[lying], 1, 8, 0, 0)
    assert len(straight) == 9
    assert len({seen for batch in straight for seen in batch}) > 54
    for world, micro, workers, first in ((2, 4, 0, 0), (1, 4, 3, 1), (2, 4, 3, 5)):
        again = stream(root, DATA[lying], world, micro, workers, first)
        assert again == straight[first:]


def test_an_image_of_another_size_than_listed_is_bad(root, tmp_path):
    train, _ = cocos.opened(root)
    name = train.name(2)
    other = tmp_path / "other"
    shutil.copytree(root, other)
    Image.new("RGB", (31, 30)).save(other / name)
    train, _ = cocos.opened(other)
    with pytest.raises(BadImage, match="is of 31 x 30 pixels, and its list says"):
        scene_objects.train_sample(train, cocos.DATA, 0, TrainIndex(0, 0, 2))
