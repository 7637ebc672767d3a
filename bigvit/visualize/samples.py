"""A picture of a training batch as the model sees it: varied, mixed, with its targets."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from bigvit.data.loader import train_batches
from bigvit.data.mix import mix_images
from bigvit.data.prepare import Prepare
from bigvit.data.sources import open_source
from bigvit.recipe import Layout, Recipe, Run
from bigvit.task import Task
from bigvit.visualize.drawing import CHARACTER, TEXT, Margins, panels, save, show_pixels

CELL = 112  # smallest width of an image in the picture, pixels
LINES = 3  # of text below it
MARGINS = Margins(below=52)


def draw_samples(recipe: Recipe, run: Run, number: int, count: int, path: Path) -> None:
    """Write the first `count` images of a global batch, with mixed targets, as one picture."""
    with torch.device("meta"):
        task = Task(recipe)
    source = open_source(recipe.data, "train", run.data_root)
    layout = Layout(1, recipe.batch_size, 1)
    batch = next(train_batches(source, recipe, layout, 0, 0, number, task.draws))[0]
    prepare = Prepare(recipe)
    inputs, normalise = prepare(batch), prepare.normalise
    images = inputs.images
    if inputs.mix is not None and batch.mix is not None and prepare.group is not None:
        # as the model does it once patches are embedded
        images = mix_images(images, batch.mix, prepare.group)
    pixels = (images * normalise.std + normalise.mean).clamp(0, 1)
    pixels = (pixels * 255).round().to(torch.uint8)
    labels = [_label(target, source.classes) for target in inputs.targets.dense[:count]]
    save(picture(pixels[:count], labels), path)


def picture(images: Tensor, labels: Sequence[str]) -> Figure:
    """Images (B, C, H, W) uint8 with their labels: each pixel is a square of whole pixels."""
    count, _, height, width = images.shape
    factor = max(1, -(-CELL // width))
    across = round(count**0.5 + 0.49)
    size = (height * factor, width * factor)
    figure, cells = panels(-(-count // across), across, size, MARGINS)
    for cell in cells.flat:
        cell.set_axis_off()
    for cell, image, label in zip(cells.flat, images, labels, strict=False):
        show_pixels(cell, image.permute(1, 2, 0).expand(-1, -1, 3).numpy())
        lines = [
            part
            for line in label.splitlines()
            for part in textwrap.wrap(line, size[1] // CHARACTER)
        ]
        text = "\n".join(lines[:LINES])
        cell.text(0, -3 / size[0], text, va="top", transform=cell.transAxes, **TEXT)
    return figure


def _label(target: Tensor, classes: list[str]) -> str:
    """The classes of a target (K,), the largest first."""
    named = [(float(share), classes[i]) for i, share in enumerate(target) if share > 0]
    named.sort(reverse=True)
    if len(named) == 1:
        return named[0][1]
    return "\n".join(f"{share:.2f} {name}" for share, name in named[:LINES])
