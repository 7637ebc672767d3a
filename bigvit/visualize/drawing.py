"""What pictures share. They are matplotlib's figures upon its Agg canvas: neither pyplot nor a
window is needed, and nothing global is changed."""

import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from numpy.typing import NDArray

DPI = 128  # a power of two, so that pixels / DPI * DPI is exact
SIZE = 6.5  # of text, points
TEXT: dict[str, Any] = {"fontsize": SIZE, "parse_math": False}  # names may hold a $
FONT = FontProperties(size=SIZE)


class Margins(NamedTuple):
    """Around a panel, pixels."""

    left: int = 4
    right: int = 4
    above: int = 4
    below: int = 4


def new_figure(width: int, height: int, **more: Any) -> Figure:
    """An empty figure of so many pixels."""
    figure = Figure((width / DPI, height / DPI), dpi=DPI, **more)
    FigureCanvasAgg(figure)
    return figure


def panels(
    rows: int, columns: int, size: tuple[int, int], margins: Margins
) -> tuple[Figure, NDArray[Any]]:
    """A figure of equal panels, each on whole pixels, and their axes (rows, columns).

    Args:
        size: (height, width) of a panel within its margins, pixels.
    """
    height, width = size
    left, right, above, below = margins
    across, down = left + width + right, above + height + below
    whole = np.array([columns * across, rows * down] * 2)
    figure = new_figure(columns * across, rows * down)
    axes = np.empty((rows, columns), dtype=object)
    for row, column in np.ndindex(rows, columns):
        bottom = (rows - 1 - row) * down + below
        place = np.array([column * across + left, bottom, width, height]) / whole
        axes[row, column] = figure.add_axes(tuple(place))
    return figure, axes


def show_pixels(axes: Axes, pixels: NDArray[np.uint8]) -> None:
    """Show an image (H, W, 3), each of its pixels a rectangle of one colour."""
    axes.imshow(pixels, interpolation="nearest")
    axes.set_axis_off()


def fitting(text: str, width: float, end: bool = False) -> str:
    """As much of a line, or of its end, as fits into so many pixels."""
    if text_width(text) <= width:
        return text
    while text and text_width(f"{text}…") > width:
        text = text[1:] if end else text[:-1]
    return f"…{text}" if end else f"{text}…"


def wrapped(text: str, width: int, most: int) -> list[str]:
    """A text in lines that fit into so many pixels, broken between words where it can be; what does
    not fit into so many lines is left out."""
    lines: list[str] = []
    words = text.split()
    while words and len(lines) < most - 1:
        line = words.pop(0)
        while words and text_width(f"{line} {words[0]}") <= width:
            line += f" {words.pop(0)}"
        kept = len(line)
        while kept > 1 and text_width(line[:kept]) > width:
            kept -= 1
        lines.append(line[:kept])
        words[:0] = [line[kept:]] if kept < len(line) else []
    return [*lines, fitting(" ".join(words), width)] if words else lines


def text_width(text: str) -> float:
    """Pixels across of a text as it is drawn."""
    with warnings.catch_warnings():  # of what the font lacks it draws a box
        warnings.simplefilter("ignore")
        across, *_ = _renderer().get_text_width_height_descent(text, FONT, False)
    return across


@lru_cache
def _renderer() -> RendererAgg:
    return RendererAgg(1, 1, DPI)


def check(path: Path, what: str = "--out") -> None:
    """Raise ValueError where a file's name says a kind of picture that `save` does not write."""
    kinds = FigureCanvasAgg.get_supported_filetypes()
    if (kind := path.suffix[1:].lower() or "png") not in kinds:
        raise ValueError(f"{what} {path}: there is no picture of kind {kind}; choose .png or .pdf")


def save(figure: Figure, path: Path) -> None:
    """Write a figure, in the format that the file's name says.

    Raises:
        ValueError: there is no such format.
        OSError: it cannot be written.
    """
    figure.savefig(path, format=path.suffix[1:].lower() or "png")
