"""Which image stands where: a pure function of (seed, epoch), the same for any number of ranks.

An epoch is as many slots as there are images. With r repeats, slot s holds copy s % r of image
permutation[s // r]; a global batch is a run of slots, put in the order of (copy, place in the
permutation), so that copies of one image are far apart in it. (In the order of image numbers,
neighbours would be of one class or of similar ones, and images are mixed with their neighbours.)
What is left over at the end of an epoch is not used.
"""

from dataclasses import dataclass, field

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
    _order: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64), init=False)

    @property
    def batches_per_epoch(self) -> int:
        return self.images // self.batch_size

    def batch(self, number: int) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
        """(epoch, slots, image numbers) of the global batch `number`, 0 being the run's first."""
        epoch, within = divmod(number, self.batches_per_epoch)
        if epoch != self._epoch:  # an order of 14 million takes 2 to 3 s: kept for the epoch
            self._epoch = epoch
            self._order = keyed_random.permutation(self.images, "order", self.seed, epoch)
        slots = np.arange(within * self.batch_size, (within + 1) * self.batch_size)
        slots = slots[np.argsort(slots % self.repeats, kind="stable")]
        return epoch, slots, self._order[slots // self.repeats]
