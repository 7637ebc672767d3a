"""What pictures share. They are matplotlib's figures upon its Agg canvas: neither pyplot nor a
window is needed, and nothing global is changed."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

DPI = 128  # a power of two, so that pixels / DPI * DPI is exact
CHARACTER = 6  # pixels across, as a rule, at this size:
TEXT: dict[str, Any] = {"fontsize": 6.5, "parse_math": False}  # names may hold a $


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


def fitting(text: str, width: int) -> str:
    """As much of a line as fits into so many pixels."""
    most = width // CHARACTER
    return text if len(text) <= most else f"{text[: most - 1]}…"


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
