"""`bigvit retrieve`: the training images that are nearest to some images (thesis section 2.3.2)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from bigvit.data import augment
from bigvit.data.sources import Source
from bigvit.data.workers import workers_for
from bigvit.labelling.predict import Files
from bigvit.neighbours.conditioned import odds_of_logits, odds_of_neighbours, odds_of_oracle
from bigvit.neighbours.embeddings import Embedded, computed
from bigvit.neighbours.given import Given, refuse_too_many
from bigvit.neighbours.nearest import (
    Condition,
    average_precisions,
    nearest,
    nearest_conditioned,
)
from bigvit.recipe import Data
from bigvit.task import PREDICTION
from bigvit.visualize.drawing import TEXT, Margins, fitting, panels, save, show_pixels

By = Literal["prediction", "oracle", "none"]
"""What a ranking is conditioned by."""

SIDE = 96  # of an image in the picture, pixels at least
SHOWN = 10  # of each query, in the picture


class Ranked(NamedTuple):
    """The nearest training images of one image, the nearest first."""

    query: int  # its number among those that were asked about
    found: list[tuple[int, str, float]]  # number, class, cosine; none where it cannot be read
    # of each the finest of the levels that are shown at which its class is the query's, "" where it
    # is at none; nothing of images whose class is not known
    right: Sequence[str] = ()


class Retrieval:
    """A model and its training images."""

    def __init__(self, given: Given, batch_size: int, workers: int | None, by: By = "none") -> None:
        self.given, self.model = given, given.model()
        self.batch_size, self.workers, self.by = batch_size, workers, by
        self.train = given.embedded(self.model, "train", batch_size, workers)

    def nearest(self, files: Files, top: int) -> list[Ranked]:
        """The nearest of each file, in their order.

        Raises:
            ValueError: there are fewer training images, or no file can be read.
        """
        asked = computed(self.model, files, self.batch_size, workers_for(self.workers))
        ranked = {each.query: each for each in self._ranked(asked, top)}
        return [ranked.get(query, Ranked(query, [])) for query in range(len(files))]

    def examples(self, count: int, top: int) -> list[Ranked]:
        """The nearest of so many test images, evenly spread over all that can be read, and at which
        level they are right.

        Raises:
            ValueError: there are fewer training images.
        """
        test = self.given.embedded(self.model, "test", self.batch_size, self.workers)
        count = min(count, len(test.ids))
        places = torch.arange(count) * len(test.ids) // count
        vectors = test.vectors[places.to(test.vectors.device)]
        asked = replace(test, vectors=vectors, ids=test.ids[places])
        ranked, known = self._ranked(asked, top), asked.classes.tolist()
        own = dict(zip(self.train.ids.tolist(), self.train.classes.tolist(), strict=True))
        return [
            each._replace(right=[self._right(own[id], truth) for id, _, _ in each.found])
            for each, truth in zip(ranked, known, strict=True)
        ]

    def _right(self, found: int, truth: int) -> str:
        """The finest level at which two classes are one."""
        levels = self.given.shown.items()
        return next((name for name, level in levels if level.of[found] == level.of[truth]), "")

    def _ranked(self, asked: Embedded, top: int) -> list[Ranked]:
        """The nearest of what could be read."""
        refuse_too_many(top, len(self.train.ids), "--top")
        condition = self._condition(asked)
        if condition is None:
            near = nearest(asked.unit, self.train.unit, top)
        else:
            near = nearest_conditioned(asked.unit, self.train.unit, top, condition)
        level, ids = self.given.level, self.train.ids
        classes = self.train.classes.tolist()
        ranked = {query: Ranked(query, []) for query in asked.ids.tolist()}
        rows = zip(ranked, near.places.tolist(), near.cosines.tolist(), strict=True)
        for query, places, cosines in rows:
            for place, cosine in zip(places, cosines, strict=True):
                name = level.classes[level.of[classes[place]]]
                ranked[query].found.append((int(ids[place]), name, cosine))
        return list(ranked.values())

    @property
    def predicted_by(self) -> str | None:
        """Who says the coarse classes' probabilities, where the ranking is by them."""
        coarse = self.given.coarse
        if self.by != "prediction" or coarse is None:
            return None
        known = self.model.classes
        return "classifier" if known == coarse.classes and self.model.classifies else "neighbours"

    def _condition(self, asked: Embedded) -> Condition | None:
        """Of images that are asked about, whose classes are known where an oracle says them."""
        coarse = self.given.coarse
        if coarse is None or self.by == "none":
            return None
        of = torch.tensor(coarse.of, device=self.train.vectors.device)
        places, count = of[self.train.classes], len(coarse.classes)
        if self.by == "oracle":
            return Condition(odds_of_oracle(of[asked.classes], count), places)
        if self.predicted_by == "classifier":
            classify = self.model._replace(embed=self._logits)
            logits = computed(classify, asked.source, self.batch_size, workers_for(self.workers))
            return Condition(odds_of_logits(logits.vectors), places)
        odds = odds_of_neighbours(asked.unit, self.train.unit, places, count)
        return Condition(odds, places)

    def _logits(self, images: torch.Tensor) -> torch.Tensor:
        return self.model.predict(images)[PREDICTION].float()

    def mean_average_precision(self) -> dict[str, Any]:
        """Of the test images, each of which asks for the training images of its class."""
        test = self.given.embedded(self.model, "test", self.batch_size, self.workers)
        level = torch.tensor(self.given.level.of, device=test.vectors.device)
        of, classes = level[test.classes], level[self.train.classes]
        pieces = average_precisions(test.unit, of, self.train.unit, classes, self._condition(test))
        found = torch.cat(list(pieces))
        found = found[found.isfinite()]  # others ask for what there is not
        return {
            "model": self.model.name,
            "classes": len(self.given.level.classes),
            "conditioned_by": self.predicted_by or self.by,
            "training_images": len(self.train.ids),
            "queries": len(found),
            "bad_images": self.train.bad + test.bad,
            "map": 100 * float(found.mean()) if len(found) else None,
        }


def lines(ranked: Sequence[Ranked], files: Source, train: Source) -> Iterator[dict[str, Any]]:
    """As JSON says them, a line an image."""
    for query, found, right in ranked:
        near: list[dict[str, Any]] = [
            {"image": train.name(id), "class": name, "cosine": cosine} for id, name, cosine in found
        ]
        for each, level in zip(near, right, strict=False):
            each["right_at"] = level or None
        said: dict[str, Any] = {"nearest": near} if near else {"error": "cannot be read"}
        yield {"image": files.name(query), **said}


def draw(ranked: Sequence[Ranked], files: Source, retrieval: Retrieval, path: Path) -> None:
    """Write a picture: a row an image, before the first ten of its training images."""
    data, levels = retrieval.model.data, list(retrieval.given.shown)
    save(picture(ranked, files, retrieval.train.source, data, levels), path)


def picture(
    ranked: Sequence[Ranked],
    files: Source,
    train: Source,
    data: Data,
    levels: Sequence[str] = (),
) -> Figure:
    """Each as the model sees it; above it its class and cosine, and around it, where the query's
    class is known, the colour of the finest level at which it is right (figures 2.6 to 2.9)."""
    colours = {
        name: colormaps["RdYlGn"](1 - i / max(1, len(levels))) for i, name in enumerate(levels)
    }
    colours[""] = colormaps["RdYlGn"](0.0)
    shown = [each for each in ranked if each.found]
    columns = 1 + min(SHOWN, max(len(each.found) for each in shown))
    rows: list[list[tuple[Any, str]]] = []
    for query, found, _ in shown:
        row = [(files.open(query), Path(files.name(query)).name)]
        row += [(train.open(id), f"{cosine:.2f} {name}") for id, name, cosine in found[:SHOWN]]
        rows.append([(augment.test_image(image, data), text) for image, text in row])
    _, height, width = rows[0][0][0].shape
    factor = max(1, -(-SIDE // width))
    size = (height * factor, width * factor)
    known = any(each.right for each in shown)
    figure, cells = panels(len(rows) + known, columns, size, Margins(above=18))
    if known:
        for cell in cells[-1]:
            cell.set_axis_off()
        named = [
            Patch(color=c, label=f"right at: {n}" if n else "wrong") for n, c in colours.items()
        ]
        cells[-1][0].legend(handles=named, loc="upper left", fontsize=TEXT["fontsize"])
    for each, places in zip(shown, cells, strict=False):
        for level, cell in zip(each.right, places[1:], strict=False):
            edge = {"edgecolor": colours[level], "linewidth": 4}
            cell.add_patch(Rectangle((0, 0), 1, 1, transform=cell.transAxes, fill=False, **edge))
    for row, places in zip(rows, cells, strict=False):
        for (pixels, text), cell in zip(row, places, strict=True):
            show_pixels(cell, np.broadcast_to(pixels, (3, height, width)).transpose(1, 2, 0))
            cell.set_title(fitting(text, size[1]), **TEXT)
    return figure
