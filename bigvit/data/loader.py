"""From image numbers to micro-batches, in any number of worker processes."""

import ctypes
import math
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bigvit import keyed_random
from bigvit.data import augment
from bigvit.data.batch import Batch, Draws
from bigvit.data.decode import BadImage, Unread
from bigvit.data.mix import draw
from bigvit.data.sampler import Sampler
from bigvit.data.sources import Source
from bigvit.ranks.launched import launched
from bigvit.ranks.stopping import SIGNALS
from bigvit.recipe import Data, Images, Layout, Recipe, sides

PR_SET_PDEATHSIG = 1  # of Linux's prctl(2)
Draw = Callable[[int, tuple[int, int]], Draws]
"""(number of the global batch, span of positions) -> everything random in the forward pass."""

ATTEMPTS = 100  # at finding an image in the place of a bad one


class TrainIndex(NamedTuple):
    """Which training image, and where it stands."""

    epoch: int
    slot: int
    id: int


class TestIndex(NamedTuple):
    """Which test image."""

    id: int
    real: bool  # false: it fills a batch, and is not counted


class Sample(NamedTuple):
    """An image as it goes into a batch. Shapes: C channels, H x W pixels."""

    image: Tensor  # (C, H, W) uint8
    target: int
    id: int
    slot: int
    valid: bool  # whether there is an image
    bad: tuple[int, ...]  # images that could not be read on the way to this one


class _TrainImages(Dataset[Sample]):
    """The source's images, varied as drawn for their places."""

    def __init__(self, source: Source, data: Data, seed: int) -> None:
        self.source, self.data, self.seed = source, data, seed

    def __getitem__(self, place: TrainIndex) -> Sample:
        """The image of a place, or another that the place alone decides on, if it is bad."""
        id, bad = place.id, list[int]()
        for attempt in range(ATTEMPTS):
            try:
                image = self.source.read(id)
            except BadImage:
                bad.append(id)
                key = ("replacement", self.seed, place.epoch, place.slot, attempt)
                id = int(keyed_random.bits(1, *key)[0] % np.uint64(len(self.source)))
                continue
            drawn = augment.draw(self.data, self.seed, place.epoch, place.slot, image.size)
            pixels = torch.from_numpy(augment.apply(image, drawn))
            return Sample(pixels, int(self.source.targets[id]), id, place.slot, True, tuple(bad))
        blank = _blank(self.data)
        return Sample(
            blank, int(self.source.targets[place.id]), place.id, place.slot, False, tuple(bad)
        )


class _TestImages(Dataset[Sample]):
    """The source's images, as they are tested."""

    def __init__(self, source: Source, data: Data) -> None:
        self.source, self.data = source, data

    def __getitem__(self, place: TestIndex) -> Sample:
        id, real = place
        try:
            pixels = torch.from_numpy(augment.test_image(self.source.read(id), self.data))
        except BadImage:
            return Sample(_blank(self.data), int(self.source.targets[id]), id, id, False, (id,))
        return Sample(pixels, int(self.source.targets[id]), id, id, real, ())


def train_batches(
    source: Source, recipe: Recipe, layout: Layout, rank: int, workers: int, first: int, draws: Draw
) -> Iterator[list[Batch]]:
    """This rank's micro-batches of every global batch from number `first` to the last one.

    `valid` is false where an image was bad and no other was found: not to be trained on.
    """
    sampler = Sampler(len(source), recipe.data.repeats, recipe.batch_size, recipe.seed)
    numbers = range(first, recipe.updates)

    def places() -> Iterator[list[TrainIndex]]:
        for number in numbers:
            epoch, slots, ids = sampler.batch(number)
            for micro in range(layout.accumulation):
                start, stop = layout.span(rank, micro)
                # plain numbers: keys of random choices are hashed as they are written
                here = zip(slots[start:stop].tolist(), ids[start:stop].tolist(), strict=True)
                yield [TrainIndex(epoch, *pair) for pair in here]

    stream = _stream(_TrainImages(source, recipe.data, recipe.seed), places, workers)
    for number in numbers:
        micro = list[Batch]()
        for i in range(layout.accumulation):
            span = layout.span(rank, i)
            mix = draw(recipe.data, recipe.seed, number, span)
            batch = next(stream)
            micro.append(batch._replace(number=number, micro=i, mix=mix, draws=draws(number, span)))
        yield micro


def test_batches(
    source: Source, data: Data, size: int, rank: int, world: int, workers: int
) -> Iterator[Batch]:
    """This rank's share of every image once, in batches of `size`, as many on every rank.

    Places without an image left repeat the last one. Theirs, and a bad image's, have `valid` false.
    """
    share = -(-len(source) // world)
    steps = -(-share // size)

    def places() -> Iterator[list[TestIndex]]:
        for step in range(steps):
            within = np.arange(step * size, (step + 1) * size)
            wanted = rank * share + within
            real = (within < share) & (wanted < len(source))
            ids = np.minimum(wanted, len(source) - 1)
            yield [TestIndex(*pair) for pair in zip(ids.tolist(), real.tolist(), strict=True)]

    workers = workers if isinstance(data, Images) else 0  # digits need no decoding
    for step, batch in enumerate(_stream(_TestImages(source, data), places, workers)):
        yield batch._replace(number=step, micro=0)


def workers_for(workers: int | None) -> int:
    """Data processes of this rank: as asked, or what its share of the host's cores allows."""
    if workers is not None:
        return workers
    return max(0, min(12, len(os.sched_getaffinity(0)) // (launched().here or 1) - 1))


def _stream(
    images: Dataset[Sample], places: Callable[[], Iterator[Any]], workers: int
) -> Iterator[Batch]:
    """Batches of the images at places, in their order.

    Raises:
        Unread: this machine cannot read images.
    """
    loader = DataLoader(
        _Packing(images),
        batch_sampler=_Iterated(places),
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=_live_and_die_with_the_rank,
        multiprocessing_context="fork" if workers else None,
        prefetch_factor=4 if workers else None,
    )
    try:
        for packed in loader:
            yield _unpacked(packed)
    except RuntimeError as error:
        raise lost(error) from None


def lost(error: RuntimeError) -> Exception:
    """What a RuntimeError means: torch raises one, at any moment, where a data process died."""
    if not str(error).startswith("DataLoader worker"):
        return error
    reason = str(error).splitlines()[0].strip(". ")
    return Unread(f"{reason}; if that was for want of memory, use fewer --workers")


class _Iterated:
    """A batch sampler from a function that makes an iterator."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return self.make()


class _Packed(NamedTuple):
    """A batch as one tensor: a process hands each over by an open file, of which it may have 1,024,
    and an update may be of hundreds of batches."""

    content: Tensor  # (bytes,) uint8: numbers, int64; valid, bool; pixels
    shape: tuple[int, ...]  # of the images
    bad: int  # how many


class _Packing(Dataset[Sample]):
    """Images by the batch."""

    def __init__(self, images: Dataset[Sample]) -> None:
        self.images = images

    def __getitems__(self, places: Sequence[Any]) -> "_Packed | Unread":
        """The images at places, or why no image can be read."""
        try:
            return _packed([self.images[place] for place in places])
        except Unread as error:  # raised, torch would write its own story around it
            return error


def _as_it_is(packed: Any) -> Any:
    return packed


def _packed(samples: Sequence[Sample]) -> _Packed:
    bad = sorted({id for sample in samples for id in sample.bad})
    columns = zip(*((s.target, s.id, s.slot) for s in samples), strict=True)
    numbers = np.array([*(n for column in columns for n in column), *bad], np.int64)
    valid = np.array([sample.valid for sample in samples])
    parts = [numbers.view(np.uint8), valid.view(np.uint8), *(s.image.numpy() for s in samples)]
    content = torch.from_numpy(np.concatenate([part.reshape(-1) for part in parts]))
    return _Packed(content, (len(samples), *samples[0].image.shape), len(bad))


def _unpacked(packed: "_Packed | Unread") -> Batch:
    """The batch, whose tensors are views of one.

    Raises:
        Unread: there is none.
    """
    if isinstance(packed, Unread):
        raise packed
    content, shape, bad = packed
    if content.is_shared():  # closes its file; where there is a GPU it was copied already
        content = content.clone()
    count = shape[0]
    numbers = content[: 8 * (3 * count + bad)].view(torch.int64)
    pixels = content.numel() - math.prod(shape)
    targets, ids, slots, bads = numbers.split([count, count, count, bad])
    return Batch(
        images=content[pixels:].view(shape),
        targets=targets,
        ids=ids,
        slots=slots,
        number=-1,
        micro=-1,
        valid=content[pixels - count : pixels].view(torch.bool),
        bad=bads,
    )


def _blank(data: Data) -> Tensor:
    """What stands where there is no image."""
    return torch.zeros((data.channels, *sides(data.image_size)), dtype=torch.uint8)


def _live_and_die_with_the_rank(_: int) -> None:
    """In a worker: a request to stop is the rank's to answer; but it ends when the rank does, also
    by SIGKILL, which the kernel tells it."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
