"""A picture of what dense relative localization has learned: for each image, the offsets that the
head guesses against the true ones."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from bigvit.checkpoint.model import read_checkpoint
from bigvit.data import augment
from bigvit.data.decode import BadImage, image_of
from bigvit.data.prepare import Normalise
from bigvit.data.sources import open_source
from bigvit.objectives import DenseRelativeLocalization, drloc
from bigvit.recipe import Recipe
from bigvit.task import Task

SIDE, GAP = 224, 24  # of an image and its plot in the picture, pixels
DOWN, ACROSS = "#c0392b", "#2471a3"  # colours of the two axes


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
    for number, (label, image) in enumerate(_images(recipe, images, count, data_root)):
        pixels = torch.from_numpy(augment.test_image(image, recipe.data))
        output = task.model(normalise(pixels[None]), None, task.wanted)
        last = head.seen(output)[-1]
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
    width, height = 2 * SIDE + 3 * GAP, SIDE + 2 * GAP
    picture = Image.new("RGB", (width, height * len(guesses)), "white")
    canvas = ImageDraw.Draw(picture)
    for row, each in enumerate(guesses):
        top = row * height + GAP
        array = each.pixels.permute(1, 2, 0).expand(-1, -1, 3).contiguous().numpy()
        image = Image.fromarray(array).resize((SIDE, SIDE), Image.Resampling.NEAREST)
        picture.paste(image, (GAP, top))
        _grid(canvas, each.grid, GAP, top)
        _plot(canvas, each, 2 * GAP + SIDE, top)
        text = f"{each.name}: off by {each.error:.2f} cells (a constant: {each.blind:.2f})"
        canvas.text((GAP, top + SIDE + 4), text, fill="black")
        canvas.text((2 * GAP + SIDE, top - 14), "down", fill=DOWN)
        canvas.text((2 * GAP + SIDE + 40, top - 14), "across", fill=ACROSS)
    picture.save(path)


def _images(
    recipe: Recipe, paths: Sequence[Path], count: int, data_root: Path | None
) -> list[tuple[str, Image.Image]]:
    if paths:
        return [(path.name, image_of(path, recipe.data)) for path in paths]
    try:
        source = open_source(recipe.data, "test", data_root)
        return [(source.name(i), source.read(i)) for i in range(min(count, len(source)))]
    except BadImage as error:
        raise ValueError(str(error)) from None


def _grid(canvas: ImageDraw.ImageDraw, grid: tuple[int, int], left: int, top: int) -> None:
    for i in range(1, grid[0]):
        y = top + i * SIDE // grid[0]
        canvas.line((left, y, left + SIDE, y), fill="#bbbbbb")
    for i in range(1, grid[1]):
        x = left + i * SIDE // grid[1]
        canvas.line((x, top, x, top + SIDE), fill="#bbbbbb")


def _plot(canvas: ImageDraw.ImageDraw, each: Guess, left: int, top: int) -> None:
    """Dots on the diagonal are guessed right; all offsets that a grid has fit in."""
    least = -max(each.grid) if bool((each.true < 0).any()) else 0
    span = max(each.grid) - least
    canvas.rectangle((left, top, left + SIDE, top + SIDE), outline="black")
    canvas.line((left, top + SIDE, left + SIDE, top), fill="#999999")
    for axis, colour in enumerate((DOWN, ACROSS)):
        for true, guessed in zip(each.true[:, axis], each.guessed[:, axis], strict=True):
            x = left + (float(true) - least) / span * SIDE + 3 * axis
            y = top + SIDE - min(max((float(guessed) - least) / span, 0), 1) * SIDE
            canvas.ellipse((x - 2, y - 2, x + 2, y + 2), fill=colour)
