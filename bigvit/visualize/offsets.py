"""A picture of what dense relative localization has learned: for each image, the offsets that the
head guesses against the true ones."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from bigvit.checkpoint.model import read_checkpoint
from bigvit.checkpoint.run import classes_map_of
from bigvit.data import augment
from bigvit.data.decode import BadImage, image_of
from bigvit.data.prepare import Normalise
from bigvit.data.sources import open_source
from bigvit.objectives import DenseRelativeLocalization, drloc
from bigvit.recipe import Recipe
from bigvit.task import Task
from bigvit.visualize.drawing import TEXT, Margins, fitting, panels, save, show_pixels

SIDE = 256  # of an image and its plot in the picture, pixels
MARGINS = Margins(left=60, right=12, above=24, below=44)
AXES = {"down": "#c0392b", "across": "#2471a3"}  # with their colours
LINES: dict[str, Any] = {"colors": "#bbbbbb", "linewidth": 0.6}  # of a grid


class Guess(NamedTuple):
    """An image's pairs. Shapes: M pairs; down, then across."""

    name: str
    pixels: Tensor  # (C, H, W) uint8
    grid: tuple[int, int]  # that the loss sees
    true: Tensor  # (M, 2) offsets in cells
    guessed: Tensor  # (M, 2)

    @property
    def error(self) -> float:
        """Mean distance along an axis of a guess from the truth, cells."""
        return float((self.guessed - self.true).abs().mean())

    @property
    def blind(self) -> float:
        """The same of the best constant guess."""
        middle = self.true.median(dim=0).values
        return float((middle - self.true).abs().mean())


@torch.no_grad()
def guess(
    path: Path, images: Sequence[Path], count: int, pairs: int, data_root: Path | None
) -> list[Guess]:
    """What the first dense relative localization of a checkpoint guesses, or of a run folder's
    newest.

    Args:
        images: files; without any, the first `count` test images of the run's data set.
        pairs: an image.

    Raises:
        Damaged: no checkpoint is whole.
        ValueError: it was trained without the loss, or an image cannot be read.
    """
    read = read_checkpoint(path)
    recipe, task = read.recipe, Task(read.recipe)
    found = [n for n, each in task.objectives.items() if each.name == "drloc"]
    if not found:
        raise ValueError(f"{path}: its recipe has no DRLoc among its objectives")
    task.load_state_dict(read.weights)
    task.eval()
    name, head, normalise = found[0], task.objectives[found[0]], Normalise(recipe.data)
    assert isinstance(head, DenseRelativeLocalization)
    guesses: list[Guess] = []
    shown = _images(recipe, images, count, data_root, classes_map_of(path))
    for number, (label, image) in enumerate(shown):
        pixels = torch.from_numpy(augment.test_image(image, recipe.data))
        output = task.model(normalise(pixels[None]), None, task.wanted)
        last = head.tokens_of(output)[-1]
        asked = replace(head.drloc, pairs=pairs)
        drawn = drloc.draw(asked, [last.grid], name, recipe.seed, 0, (number, number + 1))[0]
        grid = head.drloc.pooled(last.grid)
        true = drloc.offsets(drawn, grid)[0]
        if head.drloc.offsets == "absolute":
            true = true.abs()
        guesses.append(Guess(label, pixels, grid, true.float(), head.predict(last, drawn)[0]))
    return guesses


def draw_offsets(guesses: Sequence[Guess], path: Path) -> None:
    """Write a picture: a row an image, its grid left, guesses (up) against truth (right)."""
    save(picture(guesses), path)


def picture(guesses: Sequence[Guess]) -> Figure:
    """A row an image: its grid, and guessed offsets over true ones."""
    figure, cells = panels(len(guesses), 2, (SIDE, SIDE), MARGINS)
    for (image, plot), each in zip(cells, guesses, strict=True):
        show_pixels(image, each.pixels.permute(1, 2, 0).expand(-1, -1, 3).numpy())
        height, width = each.pixels.shape[1:]
        rows, columns = each.grid
        image.hlines(np.arange(1, rows) * height / rows - 0.5, -0.5, width - 0.5, **LINES)
        image.vlines(np.arange(1, columns) * width / columns - 0.5, -0.5, height - 0.5, **LINES)
        image.set_title(fitting(each.name, SIDE), **TEXT)
        _plot(plot, each)
    return figure


def _images(
    recipe: Recipe,
    paths: Sequence[Path],
    count: int,
    data_root: Path | None,
    classes_map: Path | None,
) -> list[tuple[str, Image.Image]]:
    if paths:
        return [(path.name, image_of(path, recipe.data)) for path in paths]
    try:
        source = open_source(recipe.data, "test", data_root, classes_map)
        return [(source.name(i), source.read(i)) for i in range(min(count, len(source)))]
    except BadImage as error:
        raise ValueError(str(error)) from None


def _plot(axes: Axes, each: Guess) -> None:
    """Dots on the diagonal are guessed right; all offsets that a grid has fit in."""
    most = max(each.grid)
    least = -most if bool((each.true < 0).any()) else 0
    axes.plot([least, most], [least, most], color="gray", linewidth=1)
    for axis, (name, colour) in enumerate(AXES.items()):
        guessed = each.guessed[:, axis].clamp(least, most)
        axes.scatter(each.true[:, axis], guessed, s=6, color=colour, label=name, zorder=2)
    axes.set(xlim=(least, most), ylim=(least, most))
    axes.set_xlabel("true offset, cells", **TEXT)
    axes.set_ylabel("guessed offset, cells", **TEXT)
    axes.tick_params(labelsize=TEXT["fontsize"])
    axes.legend(fontsize=TEXT["fontsize"], loc="upper left")
    text = f"off by {each.error:.2f} cells (a constant: {each.blind:.2f})"
    axes.set_title(text, **TEXT)
