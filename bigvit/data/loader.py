"""From image numbers to micro-batches, in any number of worker processes."""

import atexit
import contextlib
import signal
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from bigvit import keyed_random
from bigvit.data import augment, scenes
from bigvit.data.augment.crop import ResizedCrop
from bigvit.data.augment.on_device import FIELDS, numbers_of
from bigvit.data.augment.three_augment import Three
from bigvit.data.batch import Batch, Draws
from bigvit.data.decode import BadImage, Photo, Unread
from bigvit.data.label_maps.cropping import BOX
from bigvit.data.label_maps.form import BadMaps
from bigvit.data.label_maps.maps import LabelMaps
from bigvit.data.mix import draw
from bigvit.data.objects import NONE, OwnObjects
from bigvit.data.ring import Filled, Ring
from bigvit.data.sample import Mapped, Sample, TestIndex, TrainIndex
from bigvit.data.sampler import Sampler
from bigvit.data.scenes import standing_of
from bigvit.data.sources import Source
from bigvit.data.tested import test_places
from bigvit.data.workers import PREFETCH, scene_of, shape_of, slots, view_shapes
from bigvit.ranks.stopping import PASSED_ON, SIGNALS, die_with_parent
from bigvit.recipe import (
    Data,
    Detection,
    Digits,
    Images,
    Layout,
    RandAugment,
    Recipe,
    Segmentation,
)
from bigvit.recipe.scene import UNTOLD

Draw = Callable[[int, tuple[int, int]], Draws]
"""(number of the global batch, span of positions) -> everything random in the forward pass."""

ATTEMPTS = 100  # at finding an image in the place of a bad one


def _train_sample(
    source: Source,
    data: Data,
    seen: Sequence[Data],
    seed: int,
    on_device: bool,
    maps: LabelMaps | None,
    standing: NDArray[np.bool_] | None,
    place: TrainIndex,
) -> Sample:
    """The image of a place, varied as drawn for it, its further views, and its map; if it is bad,
    another that the place alone decides on.

    Args:
        seen: as `as_seen` makes it of the data.
        standing: of each image, its kind, of which the other has to be, too.
    """
    epoch, slot, id = place
    bad = list[int]()
    scaled = isinstance(data, Images) and data.decode == "scaled"
    for attempt in range(ATTEMPTS):
        try:
            if isinstance(data, Segmentation | Detection):
                here = place._replace(id=id)
                return scenes.train_sample(source, data, seed, here)._replace(bad=tuple(bad))
            image = source.open(id)
            drawn, *others = (
                augment.draw(own, seed, epoch, slot, image.size, view)
                for view, own in enumerate(seen)
            )
            three = drawn.augment if on_device and isinstance(drawn.augment, Three) else None
            drawn = drawn._replace(augment=None) if three else drawn
            pixels, *views = augment.apply_all(image, [drawn, *others], scaled)
            found = None
            if maps is not None:
                where = (*drawn.box(image.size), float(drawn.flip), *drawn.affines(data))
                found = Mapped(where, *maps.read(source.name(id)))
            return Sample(pixels, id, slot, True, tuple(bad), three, found, views)
        except BadImage:
            bad.append(id)
            key = ("replacement", seed, epoch, slot, attempt)
            drawn = keyed_random.bits(1, *key)[0]
            if standing is None:
                id = int(drawn % np.uint64(len(source)))
            else:
                alike = np.flatnonzero(standing == standing[place.id])
                id = int(alike[drawn % np.uint64(len(alike))])
    return Sample(_blank(data), place.id, slot, False, tuple(bad))


def as_seen(data: Data) -> list[Data]:
    """The data as each view is varied, the image itself first, then group by group."""
    further = enumerate(data.groups, start=1)
    return [data.group(0), *(data.group(i) for i, group in further for _ in range(group.count))]


def _sample(
    source: Source,
    data: Data,
    shown: Callable[[Image.Image | Photo, Data], NDArray[np.uint8]],
    place: TestIndex,
) -> Sample:
    """The image of a place, nothing of it at random."""
    id, real = place
    try:
        if isinstance(data, Segmentation | Detection):
            return scenes.test_sample(source, data, place)
        pixels = shown(source.open(id), data)
    except BadImage:
        return Sample(_blank(data), id, id, False, (id,))
    return Sample(pixels, id, id, real, ())


def _whole(image: Image.Image | Photo, data: Data) -> NDArray[np.uint8]:
    """An image (C, H, W), all of it, resized to the data's size whatever its shape was."""
    whole = ResizedCrop(0, 0, *image.size, data.image_size, "bicubic")
    return augment.apply(image, augment.Drawn(whole, False, None, None))


def train_batches(
    source: Source,
    recipe: Recipe,
    layout: Layout,
    rank: int,
    workers: int,
    first: int,
    draws: Draw,
    on_device: bool = False,
    maps: LabelMaps | None = None,
    never: Collection[int] = (),
) -> Generator[list[Batch]]:
    """This rank's micro-batches of every global batch from number `first` to the last one.

    `valid` is false where an image was bad and no other was found: not to be trained on.

    Args:
        on_device: leave to the device what it can do to the images (`Batch.varied`).
        maps: of labels, of all images of the source (`Batch.maps`).
        never: the place in the training, 1 for the first, of global batches that are not read: of
            each there is a list without micro-batches.

    Raises:
        Unread: this machine cannot read images, or a map of one.
    """
    on_device = on_device and recipe.data.augment_on_device
    sampler = Sampler.of(recipe, source)
    numbers = range(first, recipe.updates)

    def places() -> Iterator[list[TrainIndex]]:
        for number in numbers:
            if number + 1 in never:
                continue
            epoch, slots, ids = sampler.batch(number)
            for micro in range(layout.accumulation):
                start, stop = layout.span(rank, micro)
                # plain numbers: keys of random choices are hashed as they are written
                here = zip(slots[start:stop].tolist(), ids[start:stop].tolist(), strict=True)
                yield [TrainIndex(epoch, *pair) for pair in here]

    seen = as_seen(recipe.data)
    given = source, recipe.data, seen, recipe.seed, on_device, maps, sampler.standing
    sample = partial(_train_sample, *given)
    drawn = FIELDS if on_device else 0
    map_shape = None if maps is None else (*maps.form.cells, maps.form.top)
    of = source, sample, recipe.data, layout.micro_batch, workers
    images = _Batches(*of, drawn, map_shape, view_shapes(recipe.data), sampler.standing)
    stream = _stream(images, places(), workers)
    pinned = torch.accelerator.is_available()
    for number in numbers:
        micro = list[Batch]()
        for i in range(layout.accumulation if number + 1 not in never else 0):
            span = layout.span(rank, i)
            mix = draw(recipe.data, recipe.seed, number, span)
            batch = next(stream)._replace(
                number=number, micro=i, mix=mix, draws=draws(number, span)
            )
            micro.append(batch.pinned() if pinned else batch)
        yield micro


def test_batches(
    source: Source, data: Data, size: int, rank: int, world: int, workers: int
) -> Iterator[Batch]:
    """This rank's share of every image once, in batches of `size`, as many on every rank.

    Places without an image left repeat the last one. Theirs, and a bad image's, have `valid` false.
    Where there are two canvases, a batch is of images of one.
    """
    places = test_places(len(source), size, rank, world, standing_of(source, data))
    for step, batch in enumerate(_tested(source, data, size, workers, places)):
        yield batch._replace(number=step, micro=0)


def shared_batches(
    source: Source, data: Data, size: int, rank: int, world: int, workers: int
) -> Iterator[Batch]:
    """This rank's run of the batches in which one rank would see all test images: each is cut alike
    for any number of ranks, and a rank may have one more than another, or none."""
    share = share_of(-(-len(source) // size), rank, world)
    places = islice(test_places(len(source), size, 0, 1), share.start, share.stop)
    return _tested(source, data, size, workers, places)


def _tested(
    source: Source, data: Data, size: int, workers: int, places: Iterator[list[TestIndex]]
) -> Iterator[Batch]:
    """Test images at places."""
    workers = 0 if isinstance(data, Digits) else workers  # digits need no decoding
    sample = partial(_sample, source, data, augment.test_image)
    standing = standing_of(source, data)
    images = _Batches(source, sample, data, size, workers, standing=standing)
    return _stream(images, places, workers)


def share_of(count: int, rank: int, world: int) -> range:
    """A rank's contiguous share of things."""
    return range(count * rank // world, count * (rank + 1) // world)


def whole_batches(
    source: Source, data: Data, ids: Iterable[Sequence[int]], size: int, workers: int
) -> Iterator[Batch]:
    """Whole images of some numbers at a time, each resized to the data's size (bicubic), in batches
    of `size`; places beyond them repeat the last one. Theirs, and a bad image's, have `valid`
    false."""
    places = (
        [TestIndex(each[min(i, len(each) - 1)], i < len(each)) for i in range(size)] for each in ids
    )
    images = _Batches(source, partial(_sample, source, data, _whole), data, size, workers)
    yield from _stream(images, places, workers)


def _stream(images: "_Batches", places: Iterator[list[Any]], workers: int) -> Iterator[Batch]:
    """Batches of the images at places, in their order.

    Raises:
        Unread: this machine cannot read images.
    """
    ring = images.ring
    with_slots = ((ring.free.popleft(), wanted) for wanted in places)
    with contextlib.closing(in_order(images, with_slots, workers)) as made:
        for filled in made:
            if isinstance(filled, Unread):
                raise filled
            yield filled.batch()


def in_order(data: Dataset[Any], asked: Iterable[Any], workers: int) -> Generator[Any]:
    """What data processes answer, in the order that they are asked in.

    Args:
        data: answers all of what is asked at once, as a batch (`__getitems__`), or one by one.

    Raises:
        Unread: one of them died.
    """
    batches = hasattr(data, "__getitems__")
    by: dict[str, Any] = {"batch_sampler": asked}
    loader = DataLoader(
        data,
        **(by if batches else {"sampler": asked, "batch_size": None}),
        num_workers=workers,
        collate_fn=lambda made: made,
        pin_memory=batches and torch.accelerator.is_available(),
        worker_init_fn=_live_and_die_with_the_rank,
        multiprocessing_context="fork" if workers else None,
        prefetch_factor=PREFETCH if workers else None,
    )
    made: Any = iter(loader)
    end = made._shutdown_workers if workers else None
    if end is not None:  # at its exit Python waits for them, and they heed no other request
        atexit.register(end)
    try:
        yield from made
    except RuntimeError as error:
        raise lost(error) from None
    finally:
        if end is not None:  # now: an error's traceback would keep them alive
            atexit.unregister(end)
            end()


def lost(error: RuntimeError) -> Exception:
    """What a RuntimeError means: torch raises one, at any moment, where a data process died."""
    if not str(error).startswith("DataLoader worker"):
        return error
    reason = str(error).splitlines()[0].strip(". ")
    return Unread(f"{reason}; if that was for want of memory, use fewer --workers")


class _Batches(Dataset[Any]):
    """Images by the micro-batch, of `size` each."""

    def __init__(
        self,
        source: Source,
        sample: Callable[[Any], Sample],
        data: Data,
        size: int,
        workers: int,
        drawn: int = 0,
        map_shape: tuple[int, int, int] | None = None,
        views: Sequence[tuple[int, int, int, int]] = (),
        standing: NDArray[np.bool_] | None = None,
    ) -> None:
        self.source, self.sample, self.standing = source, sample, standing
        where = 0 if map_shape is None else numbers_for(data)
        scene = scene_of(data)
        of = slots(workers), size, shape_of(data), drawn, map_shape, where, views, scene
        self.ring = Ring(*of)

    def __getitems__(self, wanted: tuple[int, Sequence[Any]]) -> "Filled | Unread":
        """A slot with the images at places, or why no image can be read."""
        slot, places = wanted
        began, bad = time.process_time(), set[int]()
        fields = self.ring.fields(slot)
        numbers, drawn, sizes, where, classes, scores, labels, valid, pixels, views = fields
        objects = list[OwnObjects]()
        try:
            for i, place in enumerate(places):
                sample = self.sample(place)
                numbers[:, i] = self.source.targets[sample.id], sample.id, sample.slot
                valid[i], pixels[i] = sample.valid, sample.image.reshape(-1)
                if self.ring.drawn:
                    drawn[i] = 0.0 if sample.three is None else numbers_of(sample.three)
                if self.ring.map_shape is not None:
                    found = sample.map
                    where[i] = 0.0 if found is None else found.where
                    classes[i] = 0 if found is None else found.classes.reshape(-1)
                    scores[i] = 0.0 if found is None else found.scores.reshape(-1)
                if self.ring.scene is not None:
                    sizes[i] = sample.size or (0, 0)
                if self.ring.scene == "labels":
                    labels[i] = UNTOLD if sample.labels is None else sample.labels.reshape(-1)
                if self.ring.scene == "objects":
                    objects.append(sample.objects or NONE)
                _lay_out(sample.views, [each[i] for each in views], self.ring.views)
                bad.update(sample.bad)
        except BadMaps as error:
            return Unread(str(error))
        except Unread as error:  # raised, torch would write its own story around it
            return error
        seconds, known = time.process_time() - began, self.ring.scene == "objects"
        turned = self.standing is not None and bool(self.standing[places[0].id])
        more = objects if known else None, turned
        return Filled(self.ring, slot, tuple(sorted(bad)), seconds, *more)


def _lay_out(
    views: Sequence[NDArray[np.uint8]],
    groups: Sequence[NDArray[np.uint8]],
    shapes: Sequence[tuple[int, int, int, int]],
) -> None:
    """Write an image's further views into their groups; nothing but 0 where there is no image.

    Args:
        groups: of each V x C x h x w bytes.
        shapes: of each (V, C, h, w).
    """
    left = iter(views)
    for group, shape in zip(groups, shapes, strict=True):
        for place in group.reshape(shape):
            place[:] = next(left) if views else 0


def numbers_for(data: Data) -> int:
    """Numbers that say what is seen of an image (`SparseMaps.where`)."""
    augment = data.augment if isinstance(data, Images) else None
    return BOX + (6 * augment.operations if isinstance(augment, RandAugment) else 0)


def _blank(data: Data) -> NDArray[np.uint8]:
    """What stands where there is no image."""
    return np.zeros(shape_of(data), np.uint8)


def _live_and_die_with_the_rank(_: int) -> None:
    """In a worker: a request to stop is the rank's to answer; but it ends when the rank does, also
    by SIGKILL, which the kernel tells it."""
    for number in (*SIGNALS, *PASSED_ON):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()
