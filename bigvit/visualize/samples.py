"""A picture of a training batch as the model sees it: varied, mixed, with its targets."""

import textwrap
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from bigvit.data.loader import train_batches
from bigvit.data.prepare import Prepare
from bigvit.data.sources import open_source
from bigvit.recipe import Layout, Recipe, Run
from bigvit.task import Task

CELL = 112  # smallest width of an image in the picture, pixels
LINES = 3  # of text below it


def draw_samples(recipe: Recipe, run: Run, number: int, count: int, path: Path) -> None:
    """Write the first `count` images of a global batch, with mixed targets, as one picture."""
    with torch.device("meta"):
        task = Task(recipe)
    source = open_source(recipe.data, "train", run.data_root)
    cut = Layout(1, recipe.batch_size, 1)
    batch = next(train_batches(source, recipe, cut, 0, 0, number, task.draws))[0]
    inputs = Prepare(recipe)(batch)
    data = recipe.data
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (data.mean, data.std))
    pixels = ((inputs.images * std + mean).clamp(0, 1) * 255).round().to(torch.uint8)
    cells = [
        _cell(image, _label(target, source.classes))
        for image, target in zip(pixels[:count], inputs.targets.dense[:count], strict=True)
    ]
    _grid(cells).save(path)


def _label(target: Tensor, classes: list[str]) -> str:
    """The classes of a target (K,), the largest first."""
    named = [(float(share), classes[i]) for i, share in enumerate(target) if share > 0]
    named.sort(reverse=True)
    if len(named) == 1:
        return named[0][1]
    return "\n".join(f"{share:.2f} {name}" for share, name in named[:LINES])


def _cell(image: Tensor, label: str) -> Image.Image:
    array = image.permute(1, 2, 0).expand(-1, -1, 3).numpy()
    factor = max(1, -(-CELL // image.shape[2]))
    picture = Image.fromarray(array).resize(
        (image.shape[2] * factor, image.shape[1] * factor), Image.Resampling.NEAREST
    )
    width = picture.width
    cell = Image.new("RGB", (width + 8, picture.height + 12 * LINES + 10), "white")
    cell.paste(picture, (4, 4))
    lines = [part for line in label.splitlines() for part in textwrap.wrap(line, width // 6)]
    text = "\n".join(lines[:LINES])
    ImageDraw.Draw(cell).multiline_text((4, picture.height + 6), text, fill="black", spacing=1)
    return cell


def _grid(cells: list[Image.Image]) -> Image.Image:
    across = round(len(cells) ** 0.5 + 0.49)
    down = -(-len(cells) // across)
    width, height = cells[0].size
    picture = Image.new("RGB", (across * width, down * height), "white")
    for i, cell in enumerate(cells):
        picture.paste(cell, (i % across * width, i // across * height))
    return picture
