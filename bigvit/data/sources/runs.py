"""Run lengths of masks, as COCO's lists have them: on a walk down each column, how many pixels are
none of the object's, then how many are, and so on."""

import numpy as np
from numpy.typing import NDArray

BITS, MORE, SIGN = 5, 32, 16  # of a character: what it holds; whether another follows; minus
LONGEST = 12  # characters of a number that 64 bits hold


def unpacked(text: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Run lengths (R,) of a mask whose runs are packed as text: numbers of 5 bits a character, from
    the fourth on what they differ by from the one two before.

    Args: text: characters (N,).

    Raises:
        ValueError: it is no such text.
    """
    held = text.astype(np.int64) - ord("0")
    ends = np.flatnonzero(held & MORE == 0)
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    whole = len(held) > 0 and not held[-1] & MORE
    if not whole or held.min() < 0 or held.max() >= 2 * MORE or (ends - starts).max() >= LONGEST:
        raise ValueError("it is no text of packed run lengths")
    place = np.arange(len(held)) - np.repeat(starts, ends - starts + 1)
    runs = np.add.reduceat((held & MORE - 1) << BITS * place, starts)
    runs -= (held[ends] & SIGN > 0).astype(np.int64) << BITS * (ends - starts + 1)
    for first in (1, 2):
        runs[first::2] = runs[first::2].cumsum()
    return runs


def cover(runs: NDArray[np.float64], packed: bool, pixels: int) -> bool:
    """Whether runs, or characters that they are packed as, are whole numbers of pixels, and as many
    as an image has."""
    try:
        counts = unpacked(runs.astype(np.uint8)) if packed else runs
    except ValueError:
        return False
    return bool((counts >= 0).all() and (counts % 1 == 0).all()) and int(counts.sum()) == pixels
