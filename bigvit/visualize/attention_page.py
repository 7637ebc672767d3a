"""Attention as pictures (thesis figures 3.9, 3.10, 5.5, 5.6): a PNG an image, and one page of them
all."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from bigvit.visualize.attention import AttentionMaps
from bigvit.visualize.drawing import TEXT, Margins, fitting, panels, save, show_pixels

SIDE = 160  # least height and width of a panel, pixels
MARGINS = Margins(above=40)
HEAT, OPACITY = "inferno", 0.6  # of a map upon the image


def write(found: Sequence[AttentionMaps], folder: Path, title: str) -> Path:
    """Write the pictures and index.html, which shows them, into a folder; the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title>"]
    parts.append(f"<h1>{escape(title)}</h1><p>A row an attention layer, or a class that has a ")
    parts.append(
        "query of its own: what the class token, or the query, attends to, as the mean over "
    )
    parts.append("the heads, then by each head, with the least and the largest share that a patch ")
    parts.append("has.</p>")
    for number, each in enumerate(found):
        name = f"{number:03d}_{Path(each.name).stem}.png"
        save(picture(each), folder / name)
        shown = "".join(f"<li>{100 * p:.1f} % {escape(c)}</li>" for p, c in each.predictions)
        parts.append(f'<h2>{escape(each.name)}</h2><img src="{escape(name)}" alt="attention">')
        parts.append(f"<ol>{shown}</ol>")
    path = folder / "index.html"
    path.write_text("\n".join(parts) + "\n")
    return path


def picture(found: AttentionMaps) -> Figure:
    """A row a layer, or a class: the mean of its heads upon the image, then each head; on the left
    the image and, below it, what it was taken for and the colours' meaning."""
    layers, heads = found.maps.shape[:2]
    factor = -(-SIDE // found.pixels.shape[0])
    size = found.pixels.shape[0] * factor, max(SIDE, found.pixels.shape[1] * factor)
    figure, cells = panels(max(2, layers), 2 + heads, size, MARGINS)
    for cell in cells.flat:
        cell.set_axis_off()
    show_pixels(cells[0, 0], found.pixels)
    cells[0, 0].set_title(fitting(found.name, size[1]), **TEXT)
    gray = np.asarray(Image.fromarray(found.pixels).convert("L"))
    for row, layer, maps_Hhw in zip(cells, found.layers, found.maps.numpy(), strict=False):
        titles = ["mean", *(f"head {head}" for head in range(heads))]
        for cell, title, map_hw in zip(
            row[1:], titles, [maps_Hhw.mean(axis=0), *maps_Hhw], strict=True
        ):
            _show_map(cell, gray, map_hw)
            text = f"{title}, {map_hw.min():.2g} to {map_hw.max():.2g}"
            cell.set_title(f"{fitting(layer, size[1])}\n{text}", **TEXT)
    _explain(cells[1, 0], figure, cells[0, 1].images[-1], found.predictions, size[1])
    return figure


def _show_map(axes: Axes, gray: NDArray[np.uint8], map_hw: NDArray[Any]) -> None:
    """A map upon the image (H, W), whatever its brightness: from its least to its largest value."""
    axes.imshow(gray, cmap="gray", vmin=0, vmax=255)
    height, width = gray.shape
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    axes.imshow(map_hw, cmap=HEAT, alpha=OPACITY, extent=extent, interpolation="bilinear")


def _explain(
    axes: Axes, figure: Figure, shown: Any, predictions: list[tuple[float, str]], width: int
) -> None:
    axes.set_title("taken for", **TEXT)
    lines = [fitting(f"{100 * share:5.1f} %  {name}", width) for share, name in predictions]
    axes.text(0, 1, "\n".join(lines), va="top", transform=axes.transAxes, **TEXT)
    place = axes.inset_axes((0.1, 0.2, 0.8, 0.06))
    bar = figure.colorbar(shown, cax=place, orientation="horizontal")
    bar.set_ticks([shown.norm.vmin, shown.norm.vmax], labels=["least", "largest"])
    place.tick_params(labelsize=TEXT["fontsize"])
    place.set_xlabel("share of the attention", **TEXT)
