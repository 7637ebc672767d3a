"""Which image stands where: a pure function of (seed, epoch), the same for any number of ranks.

An epoch is as many slots as there are images. With r repeats, slot s holds copy s % r of image
permutation[s // r]; a global batch is a run of slots, put in the order of (copy, place in the
permutation), so that copies of one image are far apart in it. (In the order of image numbers,
neighbours would be of one class or of similar ones, and images are mixed with their neighbours.)
What is left over at the end of an epoch is not used.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from bigvit import keyed_random


@dataclass
class Sampler:
    """The order of all images of a training."""

    images: int  # in the data set, and slots in an epoch
    repeats: int  # copies of an image
    batch_size: int  # global
    seed: int
    _epoch: int = field(default=-1, init=False)
    _ahead: Thread | None = field(default=None, init=False)  # makes the next epoch's order
    _order: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64), init=False)

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
        if self._ahead is None and 2 * within >= self.batches_per_epoch - 1:
            following = self.images, self.seed, epoch + 1
            self._ahead = Thread(target=_order, args=following, name="order", daemon=True)
            self._ahead.start()
        slots = np.arange(within * self.batch_size, (within + 1) * self.batch_size)
        slots = slots[np.argsort(slots % self.repeats, kind="stable")]
        return epoch, slots, self._order[slots // self.repeats]


@lru_cache(maxsize=1)  # one of 14 million takes 2 to 3 s, mostly without Python's lock
def _order(images: int, seed: int, epoch: int) -> NDArray[np.int64]:
    order = keyed_random.permutation(images, "order", seed, epoch)
    order.flags.writeable = False
    return order
