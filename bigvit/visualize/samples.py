"""A picture of a training batch as the model sees it: varied, mixed, with its targets and, where it
learns from some, label maps and further views."""

from collections.abc import Callable, Sequence
from colorsys import hsv_to_rgb
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from bigvit.data.label_maps.maps import LabelMaps
from bigvit.data.loader import train_batches
from bigvit.data.mix import mix_images
from bigvit.data.prepare import Prepare
from bigvit.data.sources import open_source
from bigvit.recipe import Layout, Recipe, Run
from bigvit.task import Task
from bigvit.visualize.drawing import TEXT, Margins, panels, save, show_pixels, wrapped
from bigvit.visualize.frames import Drawn, framed, of_image

CELL = 112  # smallest width of an image in the picture, pixels
GOLDEN = 0.618034  # the golden section
GREY = "0.4"
OPACITY = 0.6  # of classes upon an image
LINES = 3  # of text below it
LINE = 14  # pixels from one to the next
MARGINS = Margins(below=52)
Colour = str | tuple[float, float, float]


class Line(NamedTuple):
    """Of a label."""

    text: str
    colour: Colour = "black"


class Panel(NamedTuple):
    """An image (C, H, W) uint8, and what is written below it."""

    image: Tensor
    lines: Sequence[Line]


def draw_samples(recipe: Recipe, run: Run, number: int, count: int, path: Path) -> None:
    """Write the first `count` images of a global batch, with mixed targets, as one picture; beside
    each its label map and its further views, if there are some; of scenes the classes of its pixels
    upon it.

    Raises:
        BadMaps: they are not of these images.
    """
    drawn = sample_panels(recipe, run, number, count)
    save(picture(drawn, len(drawn) // count), path)


def sample_panels(recipe: Recipe, run: Run, number: int, count: int) -> list[Panel]:
    """The panels of such a picture. Raises as `draw_samples` does."""
    with torch.device("meta"):
        task = Task(recipe)
    source = open_source(recipe.data, "train", run.data_root, run.classes_map)
    layout, maps = Layout(1, recipe.batch_size, 1), None
    if run.label_maps is not None:
        maps = LabelMaps(run.label_maps)
        maps.check(source)
    batch = next(train_batches(source, recipe, layout, 0, 0, number, task.draws, maps=maps))[0]
    prepare = Prepare(recipe)
    inputs, normalise = prepare(batch), prepare.normalise
    images = inputs.images
    if inputs.mix is not None and batch.mix is not None and prepare.group is not None:
        # as the model does it once patches are embedded
        images = mix_images(images, batch.mix, prepare.group)
    pixels = (images * normalise.std + normalise.mean).clamp(0, 1)
    pixels = (pixels * 255).round().to(torch.uint8)
    targets = inputs.targets
    of_cells = targets.map
    if of_cells is None and targets.crop is not None:
        of_cells = targets.crop[:, None, None]
    # a cell is as large as the largest
    size = [max(each.shape[d] for each in (pixels, *batch.views)) for d in (-2, -1)]
    drawn = list[Panel]()
    for i in range(count):
        if targets.labels is not None:
            drawn.append(Panel(pixels[i], ()))
            drawn.append(of_pixels(pixels[i], targets.labels[i], source.classes))
            continue
        if targets.objects is not None:
            objects = of_image(targets.objects, i, pixels.shape[2:], source.classes)
            drawn.append(of_objects(pixels[i], objects))
            continue
        drawn.append(Panel(_within(pixels[i], size), _best(targets.dense[i], source.classes)))
        if maps is not None and of_cells is not None:
            each = of_map(of_cells[i], source.classes, pixels.shape[2:])
            drawn.append(each._replace(image=_within(each.image, size)))
        for group, views in enumerate(batch.views, start=1):
            for number, view in enumerate(_within(views[i], size), start=1):
                drawn.append(Panel(view, [Line(f"view {group}.{number}", GREY)]))
    return drawn


def _within(pixels: Tensor, size: Sequence[int]) -> Tensor:
    """Pixels (..., C, h, w) in the upper left corner of white ones, so many high and wide."""
    canvas = pixels.new_full((*pixels.shape[:-2], *size), 255)
    canvas[..., : pixels.shape[-2], : pixels.shape[-1]] = pixels
    return canvas


def of_map(shares: Tensor, classes: list[str], size: Sequence[int]) -> Panel:
    """A label map (H, W, K), so many pixels high and wide: each cell in the colour of its best
    class, the paler the smaller its share; below it the classes with the most of it."""
    best = shares.max(dim=-1)
    colours = torch.tensor([colour(int(number)) for number in best.indices.flatten()])
    colours = colours.view(*best.indices.shape, 3)
    cells = torch.lerp(torch.ones(3), colours, best.values[..., None])
    cells = (cells * 255).round().to(torch.uint8).permute(2, 0, 1)
    down = torch.arange(size[0]) * cells.shape[1] // size[0]
    across = torch.arange(size[1]) * cells.shape[2] // size[1]
    lines = _best(shares.mean(dim=(0, 1)), classes, colour)
    return Panel(cells[:, down][:, :, across], lines)


def of_pixels(pixels: Tensor, labels: Tensor, classes: list[str], title: str = "") -> Panel:
    """An image (3, H, W) with each pixel's class (H, W) upon it as a colour, gray where none is
    told; below it a title, if it has one, and the classes with the most of it."""
    count = len(classes)
    colours = torch.tensor([colour(number) for number in range(count)])
    told = labels < count
    upon = colours[labels.clamp(max=count - 1).long()].permute(2, 0, 1)
    image = pixels / 255
    gray = image.mean(dim=0, keepdim=True).expand_as(image)
    image = torch.where(told, torch.lerp(gray, upon, OPACITY), gray)
    shares = torch.bincount(labels[told].flatten(), minlength=count) / max(1, int(told.sum()))
    lines = [*([Line(title)] if title else []), *_best(shares, classes, colour)]
    return Panel((image * 255).round().to(torch.uint8), lines[:LINES])


def of_objects(pixels: Tensor, objects: Sequence[Drawn], title: str = "") -> Panel:
    """An image (3, H, W) with objects upon it, in the colours of their classes; below it a title,
    if it has one, and the first of them."""
    lines = [*([Line(title)] if title else [])]
    lines += [Line(each.text, colour(each.of)) for each in objects]
    return Panel(framed(pixels, objects, colour), (lines or [Line("no object")])[:LINES])


def colour(number: int) -> tuple[float, float, float]:
    """Of a class: hues of consecutive ones lie far apart."""
    return hsv_to_rgb(number * GOLDEN % 1, 0.8, 0.9)


def draw_panels(drawn: Sequence[Panel], together: int, path: Path) -> None:
    """Write one picture; images of other shapes are filled up at their right and below.

    Args:
        together: how many stay beside each other.
    """
    height = max(panel.image.shape[1] for panel in drawn)
    width = max(panel.image.shape[2] for panel in drawn)
    filled = [Panel(_within(image, (height, width)), lines) for image, lines in drawn]
    save(picture(filled, together), path)


def picture(drawn: Sequence[Panel], together: int = 1) -> Figure:
    """Images with their labels, each pixel a square of whole pixels.

    Args:
        together: how many stay beside each other.
    """
    count, (_, height, width) = len(drawn), drawn[0].image.shape
    factor = max(1, -(-CELL // width))
    across = together * round((count / together) ** 0.5 + 0.49)
    size = (height * factor, width * factor)
    figure, cells = panels(-(-count // across), across, size, MARGINS)
    for cell in cells.flat:
        cell.set_axis_off()
    for cell, each in zip(cells.flat, drawn, strict=False):
        show_pixels(cell, each.image.permute(1, 2, 0).expand(-1, -1, 3).numpy())
        lines = [
            Line(part, line.colour)
            for line in each.lines
            for part in wrapped(line.text, size[1], LINES)
        ]
        for i, line in enumerate(lines[:LINES]):
            place = (0, -(3 + i * LINE) / size[0])
            options = TEXT | {"va": "top", "color": line.colour}
            cell.text(*place, line.text, transform=cell.transAxes, **options)
    return figure


def _best(
    shares: Tensor, classes: list[str], of_class: Callable[[int], Colour] | None = None
) -> list[Line]:
    """The classes of shares (K,), the largest first."""
    named = [(float(share), i) for i, share in enumerate(shares) if share > 0]
    named.sort(reverse=True)
    alone = len(named) == 1
    return [
        Line(
            classes[i] if alone else f"{share:.2f} {classes[i]}",
            "black" if of_class is None else of_class(i),
        )
        for share, i in named[:LINES]
    ]
