"""3-Augment and colour jitter of a whole batch, on the device: the bytes that Pillow gives.

Every operation is done to every image, and each image keeps what was drawn for it: so shapes are
fixed, and nothing is read by the host. Sums are of whole numbers that float64 holds, and blends in
float32 in Pillow's order, so the results are the same on every device.

Shapes: B images, H x W pixels.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bigvit.data.augment import jitter
from bigvit.data.augment.three_augment import CHOICES, RADII, STRENGTHS, THRESHOLD, Three

ENHANCEMENTS = jitter.ENHANCEMENTS[:STRENGTHS]
PASSES = 3  # of a box, which make a Gaussian
REACH = 2  # pixels that a box of the largest radius reaches to each side
SHARES = 1 << 24  # of a box's weight
FIELDS = 1 + (REACH + 1) + 2 * len(ENHANCEMENTS)
"""Numbers an image: its choice; a box's weights, of the pixel itself, its neighbours and theirs, in
1/SHARES; the kinds of jitter in their order, and their factors."""


def numbers_of(three: Three) -> NDArray[np.float64]:
    """What was drawn for an image (FIELDS,)."""
    kinds = [float(ENHANCEMENTS.index(each.what)) for each in three.jitter]
    factors = [each.factor for each in three.jitter]
    rest = len(ENHANCEMENTS) - len(kinds)
    weights = _box(three.radius) if three.radius is not None else [0.0] * (REACH + 1)
    jitter = [*kinds, *[0.0] * rest, *factors, *[1.0] * rest]  # by 1 nothing changes
    return np.array([CHOICES.index(three.choice), *weights, *jitter])


def _box(sigma: float) -> list[float]:
    """Weights of a box, three passes of which have a deviation, in Pillow's arithmetic (Gwosdek et
    al. 2011, equations 7, 11 and 14)."""
    f = np.float32
    variance = f(f(sigma) * f(sigma) / f(PASSES))
    length = f(math.sqrt(12.0 * float(variance) + 1.0))
    whole = f(math.floor((float(length) - 1.0) / 2.0))
    part = f(f(2) * whole + f(1)) * f(whole * f(whole + f(1)) - f(3) * variance)
    part = part / f(f(6) * f(variance - f(whole + f(1)) * f(whole + f(1))))
    radius = f(whole + part)
    inside = int(radius)
    inner = int(f(SHARES) / f(radius * f(2) + f(1)))
    outer = (SHARES - (inside * 2 + 1) * inner) // 2
    assert inside < REACH, f"a blur of {sigma} reaches farther than {RADII[1]} does"
    return [float(inner), *[float(inner)] * inside, float(outer), *[0.0] * (REACH - 1 - inside)]


def apply(images: Tensor, drawn: Tensor) -> Tensor:
    """The varied images (B, 3, H, W) uint8.

    Args:
        images: (B, 3, H, W) uint8.
        drawn: of each image what `numbers_of` says (B, FIELDS) float64.
    """
    choice, *columns = drawn[:, :, None, None, None].unbind(1)
    weights, jitter = columns[: REACH + 1], columns[REACH + 1 :]
    kinds, factors = jitter[: len(ENHANCEMENTS)], jitter[len(ENHANCEMENTS) :]
    solarized = torch.where(images < THRESHOLD, images, 255 - images)
    made = torch.where(choice == CHOICES.index("grayscale"), _gray(images), images)
    made = torch.where(choice == CHOICES.index("solarize"), solarized, made)
    made = torch.where(choice == CHOICES.index("blur"), _blurred(images, weights), made)
    for kind, factor in zip(kinds, factors, strict=True):
        made = _jittered(made, kind, factor.float())
    return made


def _gray(images: Tensor) -> Tensor:
    """Pillow's L (B, 1, H, W)."""
    red, green, blue = images.int().split(1, dim=1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).to(torch.uint8)


def _blurred(images: Tensor, weights: Sequence[Tensor]) -> Tensor:
    made = images.double()
    for sides in ((REACH, REACH, 0, 0), (0, 0, REACH, REACH)):  # along rows, then along columns
        dim, length = (3, images.shape[3]) if sides[0] else (2, images.shape[2])
        for _ in range(PASSES):
            wide = F.pad(made, sides, mode="replicate")
            sums = weights[0] * made + SHARES // 2
            for reach in range(1, REACH + 1):
                before = wide.narrow(dim, REACH - reach, length)
                sums = sums + weights[reach] * (before + wide.narrow(dim, REACH + reach, length))
            made = (sums / SHARES).floor()
    return made.to(torch.uint8)


def _jittered(images: Tensor, kind: Tensor, factor: Tensor) -> Tensor:
    """Away from, or towards, black, the mean gray, or each pixel's gray."""
    gray = _gray(images)
    mean = (gray.double().mean(dim=(1, 2, 3), keepdim=True) + 0.5).floor().float()
    start = torch.where(kind == ENHANCEMENTS.index("contrast"), mean, gray.float())
    start = torch.where(kind == ENHANCEMENTS.index("brightness"), 0.0, start)
    return (start + factor * (images.float() - start)).clamp(0, 255).to(torch.uint8)
