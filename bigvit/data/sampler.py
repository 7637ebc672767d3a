"""Which image stands where: a pure function of (seed, epoch), the same for any number of ranks.

An epoch is as many slots as there are images. With r repeats, slot s holds copy s % r of image
permutation[s // r]; a global batch is a run of slots, put in the order of (copy, place in the
permutation), so that copies of one image are far apart in it. (In the order of image numbers,
neighbours would be of one class or of similar ones, and images are mixed with their neighbours.)
What is left over at the end of an epoch is not used.

Where images lie or stand, and a batch is of one kind, an epoch has as many batches. They are shared
in proportion to the kinds' slots; which one has the batch that is left is drawn, so that an image
is seen equally often, however few are of its kind. A kind's slots are cut into batches in order; if
they do not fill its last one, that has the first of them again, with numbers beyond the epoch's, so
that they are varied anew. Batches come in the order of their last slots. (torchvision's reference
fills the batches that are left by the same images, and takes the kinds with the most first.)
"""

from dataclasses import dataclass, field
from functools import lru_cache
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from bigvit import keyed_random
from bigvit.data.scenes import standing_of
from bigvit.data.sources import Source
from bigvit.recipe import Recipe


@dataclass
class Sampler:
    """The order of all images of a training."""

    images: int  # in the data set, and slots in an epoch
    repeats: int  # copies of an image
    batch_size: int  # global
    seed: int
    standing: NDArray[np.bool_] | None = None  # of each image, its kind; None: all are of one
    _epoch: int = field(default=-1, init=False)
    _ahead: Thread | None = field(default=None, init=False)  # makes the next epoch's order
    _order: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64), init=False)
    _cut: NDArray[np.int64] | None = field(default=None, init=False)  # of kinds: batches' slots

    @classmethod
    def of(cls, recipe: Recipe, source: Source) -> "Sampler":
        """The order of a recipe's training images."""
        standing = standing_of(source, recipe.data)
        return cls(len(source), recipe.data.repeats, recipe.batch_size, recipe.seed, standing)

    @property
    def batches_per_epoch(self) -> int:
        return self.images // self.batch_size

    def batch(self, number: int) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
        """(epoch, slots, image numbers) of the global batch `number`, 0 being the run's first."""
        epoch, within = divmod(number, self.batches_per_epoch)
        if epoch != self._epoch:
            if self._ahead is not None:
                self._ahead.join()
            self._epoch, self._order = epoch, _order(self.images, self.seed, epoch)
            self._ahead = None
            self._cut = None if self.standing is None else self._by_kind(self.standing)
        if self._ahead is None and 2 * within >= self.batches_per_epoch - 1:
            following = self.images, self.seed, epoch + 1
            self._ahead = Thread(target=_order, args=following, name="order", daemon=True)
            self._ahead.start()
        slots = np.arange(within * self.batch_size, (within + 1) * self.batch_size)
        slots = slots if self._cut is None else self._cut[within]
        slots = slots[np.argsort(slots % self.images % self.repeats, kind="stable")]
        return epoch, slots, self._order[slots % self.images // self.repeats]

    def _by_kind(self, standing: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The slots of each batch of the epoch (batches, batch_size), beyond the epoch's where it
        is filled."""
        batches, made = self.batches_per_epoch, list[NDArray[np.int64]]()
        stands = standing[self._order[np.arange(self.images) // self.repeats]]
        whole, left = divmod(int(stands.sum()) * batches, self.images)
        drawn = keyed_random.uniform(1, "kind", self.seed, self._epoch)[0]
        count = whole + int(drawn * self.images < left)
        for kind, own in ((False, batches - count), (True, count)):
            slots = np.flatnonzero(stands == kind)
            again, place = np.divmod(np.arange(own * self.batch_size), max(1, len(slots)))
            made.append((slots[place] + again * self.images).reshape(own, self.batch_size))
        every = np.concatenate(made)
        return every[np.argsort(every[:, -1], kind="stable")]


@lru_cache(maxsize=1)  # one of 14 million takes 2 to 3 s, mostly without Python's lock
def _order(images: int, seed: int, epoch: int) -> NDArray[np.int64]:
    order = keyed_random.permutation(images, "order", seed, epoch)
    order.flags.writeable = False
    return order
