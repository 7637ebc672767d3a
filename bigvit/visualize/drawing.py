"""Pictures: maps in cividis, and curves. Drawn with PIL, which is there anyway."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

FLOATS = NDArray[np.floating]

# cividis (arXiv:1712.01662) at ten equal steps, in between linear
CIVIDIS = np.array(
    [
        (0x00, 0x22, 0x4E),
        (0x12, 0x35, 0x70),
        (0x3B, 0x49, 0x6C),
        (0x57, 0x5D, 0x6D),
        (0x70, 0x71, 0x73),
        (0x8A, 0x86, 0x78),
        (0xA5, 0x9C, 0x74),
        (0xC3, 0xB3, 0x69),
        (0xE1, 0xCC, 0x55),
        (0xFE, 0xE8, 0x38),
    ]
)
MARGIN = 8  # pixels between pictures
LINE = 12  # pixels of a line of text


def cividis(values: FLOATS) -> NDArray[np.uint8]:
    """Values in [0, 1] (...) -> colours (..., 3)."""
    at = np.linspace(0, 1, len(CIVIDIS))
    channels = [np.interp(values, at, CIVIDIS[:, c]) for c in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def to_unit(values: FLOATS) -> FLOATS:
    """(x - min) / (max - min); all 0 where they are all the same."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def enlarged(values: FLOATS, size: tuple[int, int]) -> FLOATS:
    """A map (h, w), bilinearly, as (H, W) = size."""
    height, width = size
    image = Image.fromarray(values.astype(np.float32))
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))


def page(rows: Sequence[Sequence[tuple[str, Image.Image]]]) -> Image.Image:
    """Rows of pictures of one size, each with a title above it."""
    width, height = rows[0][0][1].size
    across, down = width + MARGIN, height + LINE + MARGIN
    most = max(len(row) for row in rows)
    whole = Image.new("RGB", (most * across + MARGIN, len(rows) * down + MARGIN), "white")
    drawing = ImageDraw.Draw(whole)
    for i, row in enumerate(rows):
        for j, (title, picture) in enumerate(row):
            left, top = MARGIN + j * across, MARGIN + i * down
            drawing.text((left, top - 2), title[: width // 6], fill="black")
            whole.paste(picture, (left, top + LINE))
    return whole


class Curve(NamedTuple):
    """Values at 1, 2, 3, ..., in a colour."""

    label: str
    values: Sequence[float]
    colour: tuple[int, int, int]


def plot(
    title: str, across: str, curves: Sequence[Curve], size: tuple[int, int] = (640, 300)
) -> Image.Image:
    """Curves over 1, 2, 3, ..., from 0 up, with their labels."""
    width, height = size
    left, right, top, bottom = 56, width - 190, 24, height - 36
    picture = Image.new("RGB", size, "white")
    drawing = ImageDraw.Draw(picture)
    count = max(len(curve.values) for curve in curves)
    highest = max(max(curve.values) for curve in curves) or 1.0

    def place(i: int, value: float) -> tuple[float, float]:
        x = left + (right - left) * (i / max(1, count - 1))
        return x, bottom - (bottom - top) * value / highest

    drawing.text((left, 6), title, fill="black")
    drawing.text(((left + right) // 2 - 3 * len(across), height - 16), across, fill="black")
    drawing.rectangle((left, top, right, bottom), outline="black")
    for k in range(5):
        value = highest * k / 4
        _, y = place(0, value)
        drawing.line((left - 4, y, left, y), fill="black")
        drawing.text((4, y - 6), f"{value:.2g}", fill="black")
    for i in range(0, count, max(1, count // 8)):
        x, _ = place(i, 0)
        drawing.line((x, bottom, x, bottom + 4), fill="black")
        drawing.text((x - 4, bottom + 5), str(i + 1), fill="black")
    for n, curve in enumerate(curves):
        points = [place(i, value) for i, value in enumerate(curve.values)]
        drawing.line(points, fill=curve.colour, width=2)
        for x, y in points:
            drawing.ellipse((x - 2, y - 2, x + 2, y + 2), fill=curve.colour)
        drawing.text((right + 10, top + LINE * n), curve.label[:28], fill=curve.colour)
    return picture
