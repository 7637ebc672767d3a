"""What ResMLP has learned across patches as pictures (thesis figures 4.2 and 4.3): a PNG a layer,
curves of sparsity, and one page of them all."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import TABLEAU_COLORS
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL import Image

from bigvit.visualize.drawing import new_figure, save
from bigvit.visualize.patches import ACROSS, SMALL, Learned, Rows

COLOURS = list(TABLEAU_COLORS)  # of runs
SIGNS = "RdBu_r"  # blue below 0, white at 0, red above
WIDTH = 360  # least width of a layer's picture, pixels
GAP = 1  # patches between two rows' pictures
STYLES = {
    "linear_tokens": "-",
    "mlp_tokens.fc1": "-",
    "mlp_tokens.fc2": (0, (6, 1)),
    "mlp_channels.fc1": "--",
    "mlp_channels.fc2": ":",
}


def write(found: Sequence[Learned], folder: Path) -> Path:
    """Write the pictures and index.html, which shows them, into a folder; the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    save(curves(found), folder / "sparsity.png")
    parts = ["<!doctype html><meta charset=utf-8><title>Across patches</title>"]
    parts.append(
        f"<h1>Across patches</h1><p>Sparsity: the share of a matrix's elements below {SMALL:.0%} "
    )
    parts.append('of the largest.</p><img src="sparsity.png" alt="sparsity">')
    for number, each in enumerate(found):
        parts.append(
            f"<h2>{escape(each.run)}, update {each.update}</h2><p>Of each matrix some rows, "
        )
        parts.append(
            "each a picture of the patches that it reads: red above 0, blue below, white 0, "
        )
        parts.append("to the largest of all that are shown of the matrix.</p>")
        for rows in each.rows:
            name = f"{number:02d}_{rows.name}.png"
            Image.fromarray(mosaic(rows)).save(folder / name)
            low, high = rows.pictures.min().item(), rows.pictures.max().item()
            text = f"{rows.name}: {low:.2g} to {high:.2g}, sparsity {rows.sparsity:.1%}"
            parts.append(f'<h3>{escape(text)}</h3><img src="{escape(name)}" alt="rows">')
    path = folder / "index.html"
    path.write_text("\n".join(parts) + "\n")
    return path


def mosaic(rows: Rows) -> NDArray[np.uint8]:
    """The rows' pictures side by side, as the patches lie: pixels (height, width, 3)."""
    down, across, h, w = rows.pictures.shape
    largest = rows.pictures.abs().max().item() or 1.0
    whole = np.full((down * (h + GAP) - GAP, across * (w + GAP) - GAP, 3), 0, np.uint8)
    for i, j in np.ndindex(down, across):
        values = 0.5 + 0.5 * rows.pictures[i, j].numpy() / largest
        top, left = i * (h + GAP), j * (w + GAP)
        whole[top : top + h, left : left + w] = colormaps[SIGNS](values, bytes=True)[..., :3]
    factor = -(-WIDTH // whole.shape[1])
    return whole.repeat(factor, axis=0).repeat(factor, axis=1)


def curves(found: Sequence[Learned]) -> Figure:
    """Sparsity by block: a colour a run, a style a matrix."""
    figure = new_figure(1120, 560, layout="constrained")
    axes = figure.subplots()
    for number, each in enumerate(found):
        for name, values in each.sparsity.items():
            axes.plot(
                range(1, len(values) + 1),
                values,
                linestyle=STYLES[name],
                linewidth=2 if name in ACROSS else 1,
                marker="o",
                markersize=3,
                color=COLOURS[number % len(COLOURS)],
                label=f"{each.run}: {name}",
            )
    axes.set_ylim(0, 1)
    axes.set_xlabel("block")
    axes.set_ylabel(f"share below {SMALL:.0%} of the largest")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    legend = figure.legend(handles=axes.lines, loc="outside right upper", fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure
