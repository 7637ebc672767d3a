"""From image numbers to micro-batches, in any number of worker processes."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bigvit.data import augment
from bigvit.data.sampler import Sampler
from bigvit.data.sources import Source
from bigvit.recipe import Data, Layout, Recipe
from bigvit.task import Batch

Draws = Callable[[int, tuple[int, int]], dict[str, Tensor]]
"""(number of the global batch, span of positions) -> everything random in the forward pass."""


class Place(NamedTuple):
    """Which image, and where it stands."""

    epoch: int
    slot: int
    id: int


class Sample(NamedTuple):
    """An image as it goes into a batch. Shapes: C channels, H x W pixels."""

    image: Tensor  # (C, H, W) uint8
    target: int
    id: int
    slot: int


class _Images(Dataset[Sample]):
    """The source's images, varied as drawn for their places."""

    def __init__(self, source: Source, data: Data, seed: int) -> None:
        self.source, self.data, self.seed = source, data, seed

    def __getitem__(self, place: Place) -> Sample:
        drawn = augment.draw(self.data, self.seed, place.epoch, place.slot)
        image = augment.apply(self.source.image(place.id), drawn)
        tensor = torch.from_numpy(np.ascontiguousarray(image))
        return Sample(tensor, self.source.target(place.id), place.id, place.slot)


def train_batches(
    source: Source, recipe: Recipe, cut: Layout, rank: int, workers: int, first: int, draws: Draws
) -> Iterator[list[Batch]]:
    """This rank's micro-batches of every global batch from number `first` to the last one."""
    sampler = Sampler(len(source), recipe.data.repeats, recipe.batch_size, recipe.seed)
    numbers = range(first, recipe.updates)

    def places() -> Iterator[list[Place]]:
        for number in numbers:
            epoch, slots, ids = sampler.batch(number)
            for micro in range(cut.accumulation):
                start, stop = cut.span(rank, micro)
                # plain numbers: keys of random choices are hashed as they are written
                here = zip(slots[start:stop].tolist(), ids[start:stop].tolist(), strict=True)
                yield [Place(epoch, *pair) for pair in here]

    loader = DataLoader(
        _Images(source, recipe.data, recipe.seed),
        batch_sampler=_Iterated(places),
        num_workers=workers,
        collate_fn=_collate,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=_ignore_signals,
        multiprocessing_context="fork" if workers else None,
        prefetch_factor=4 if workers else None,
    )
    stream = iter(loader)
    for number in numbers:
        yield [
            next(stream)._replace(
                number=number, micro=micro, draws=draws(number, cut.span(rank, micro))
            )
            for micro in range(cut.accumulation)
        ]


def test_batches(source: Source, size: int, rank: int, world: int) -> Iterator[Batch]:
    """This rank's share of every image once, in batches of `size`, as many on every rank.

    Places without an image left repeat the last one with `valid` false.
    """
    share = -(-len(source) // world)
    steps = -(-share // size)
    for step in range(steps):
        within = np.arange(step * size, (step + 1) * size)
        wanted = rank * share + within
        valid = (within < share) & (wanted < len(source))
        ids = np.minimum(wanted, len(source) - 1)
        images = torch.stack([torch.from_numpy(source.image(int(i))) for i in ids])
        targets = torch.tensor([source.target(int(i)) for i in ids])
        numbers = torch.from_numpy(ids)
        yield Batch(images, targets, numbers, numbers, step, 0, torch.from_numpy(valid), {})


def workers_for(workers: int | None) -> int:
    """Data processes of this rank: as asked, or what its share of the host's cores allows."""
    if workers is not None:
        return workers
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE", "1")))
    return max(0, min(12, len(os.sched_getaffinity(0)) // ranks_here - 1))


class _Iterated:
    """A batch sampler from a function that makes an iterator."""

    def __init__(self, make: Callable[[], Iterator[list[Place]]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[list[Place]]:
        return self.make()


def _collate(samples: Sequence[Sample]) -> Batch:
    count = len(samples)
    return Batch(
        images=torch.stack([sample.image for sample in samples]),
        targets=torch.tensor([sample.target for sample in samples]),
        ids=torch.tensor([sample.id for sample in samples]),
        slots=torch.tensor([sample.slot for sample in samples]),
        number=-1,
        micro=-1,
        valid=torch.ones(count, dtype=torch.bool),
        draws={},
    )


def _ignore_signals(_: int) -> None:
    """A request to stop is the rank's to answer; a worker ends with its parent."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
