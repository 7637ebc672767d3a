"""Which test images a rank looks at, batch by batch."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bigvit.data.sample import TestIndex


def test_places(
    images: int, size: int, rank: int, world: int, standing: NDArray[np.bool_] | None = None
) -> Iterator[list[TestIndex]]:
    """A rank's batches of the test images, as many as any other's; what fills them is not real.

    Args:
        standing: of each image, its kind: a batch is of one. None: all are.
    """
    if standing is not None:
        yield from _by_kind(standing, size, rank, world)
        return
    share = -(-images // world)
    for step in range(-(-share // size)):
        within = np.arange(step * size, (step + 1) * size)
        wanted = rank * share + within
        real = (within < share) & (wanted < images)
        ids = np.minimum(wanted, images - 1)
        yield [TestIndex(*pair) for pair in zip(ids.tolist(), real.tolist(), strict=True)]


def _by_kind(
    standing: NDArray[np.bool_], size: int, rank: int, world: int
) -> Iterator[list[TestIndex]]:
    """The same, in the order of the batches' first images."""
    whole = list[list[TestIndex]]()
    for kind in (False, True):
        ids = np.flatnonzero(standing == kind).tolist()
        for start in range(0, len(ids), size):
            own = ids[start : start + size]
            fill = [TestIndex(own[-1], False)] * (size - len(own))
            whole.append([TestIndex(id, True) for id in own] + fill)
    whole.sort()
    share = -(-len(whole) // world)
    for number in range(rank * share, (rank + 1) * share):
        if number < len(whole):
            yield whole[number]
        else:
            yield [place._replace(real=False) for place in whole[-1]]
