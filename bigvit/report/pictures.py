"""Pixels as pictures of a page: small, WebP."""

import io
from typing import Any

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import Image

from bigvit.report.blocks import Picture, Tone

SIDE = 192  # pixels across, at most
QUALITY = 82
HEAT, OPACITY = "inferno", 0.62  # of a map upon an image


def picture(
    pixels: NDArray[np.uint8], alt: str, lines: list[tuple[str, Tone]], most: int = SIDE
) -> Picture:
    """A picture of pixels (H, W, C), C being 1 or 3, no more than so many across."""
    height, width, _ = pixels.shape
    image = Image.fromarray(np.broadcast_to(pixels, (height, width, 3)))
    if width > most:
        image = image.resize((most, max(1, round(height * most / width))), Image.Resampling.LANCZOS)
    with io.BytesIO() as file:
        image.save(file, "WEBP", quality=QUALITY, method=4)
        return Picture(file.getvalue(), image.size, alt, lines)


def of_tensor(pixels: Any) -> NDArray[np.uint8]:
    """(C, H, W) uint8, as pictures take it."""
    return pixels.permute(1, 2, 0).cpu().numpy()


def heat(pixels: NDArray[np.uint8], map_hw: NDArray[Any]) -> NDArray[np.uint8]:
    """A map upon an image (H, W, C) made gray: from its least to its largest value."""
    height, width, _ = pixels.shape
    gray = pixels.mean(axis=2, keepdims=True) / 255
    low, high = float(map_hw.min()), float(map_hw.max())
    shares = ((map_hw - low) / max(high - low, 1e-12) * 255).astype(np.uint8)
    wide = Image.fromarray(shares).resize((width, height), Image.Resampling.BILINEAR)
    colours = colormaps[HEAT](np.asarray(wide))[..., :3]
    return ((OPACITY * colours + (1 - OPACITY) * gray) * 255).round().astype(np.uint8)
