"""A picture of the images that models differ on most."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from bigvit.data import augment
from bigvit.data.sources import Source
from bigvit.recipe import Data
from bigvit.visualize.compare import Answers
from bigvit.visualize.drawing import TEXT, Margins, fitting, panels, save, show_pixels, text_width

SIDE = 160  # of an image in the picture, pixels at least
LINE = 13  # pixels down, of a line of text


def draw(answers: Answers, test: Source, data: Data, count: int, path: Path) -> None:
    """Write the images that models differ on most, with what each says, the furthest first."""
    save(picture(answers, test, data, count), path)


def picture(answers: Answers, test: Source, data: Data, count: int) -> Figure:
    """As many images; above each its class, below it a line a model."""
    places = answers.most_apart(count).tolist()
    shown = [augment.test_image(test.open(int(answers.ids[i])), data) for i in places]
    _, height, width = shown[0].shape
    factor = max(1, -(-SIDE // width))
    size, lines = (height * factor, width * factor), len(answers.names)
    across = min(len(places), max(1, round(len(places) ** 0.5 + 0.49)))
    margins = Margins(above=LINE + 6, below=lines * LINE + 8)
    figure, cells = panels(-(-len(places) // across), across, size, margins)
    for cell in cells.flat:
        cell.set_axis_off()
    for cell, place, pixels in zip(cells.flat, places, shown, strict=False):
        show_pixels(cell, np.broadcast_to(pixels, (3, height, width)).transpose(1, 2, 0))
        truth = answers.classes[int(answers.truth[place])]
        cell.set_title(fitting(truth, size[1]), **TEXT)
        for line, name in enumerate(answers.names):
            sure, best = float(answers.sure[line, place]), int(answers.best[line, place])
            colour = "#1e8449" if answers.right[line, place] else "#c0392b"
            said = f"{sure:4.0%} {answers.classes[best]}"
            room = size[1] - text_width(f"{said} ")
            name = fitting(name, room, end=True)  # which tells the head
            text = fitting(f"{said} {name}", size[1])
            down = -(4 + line * LINE) / size[0]
            cell.text(0, down, text, va="top", color=colour, transform=cell.transAxes, **TEXT)
    return figure
