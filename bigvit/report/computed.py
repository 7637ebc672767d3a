"""What has to be computed for a report: a training batch, and what the newest whole checkpoint
makes of test images. Each part says why it is left out where it cannot be made.

Shapes: N images, K classes, H heads, h x w patches of an image.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bigvit.checkpoint.run import classes_map_of
from bigvit.checkpoint.trained import trained
from bigvit.data import augment
from bigvit.data.decode import BadImage
from bigvit.data.prepare import Normalise
from bigvit.data.sources import Source, open_source
from bigvit.recipe import Data, Detection, DRLoc, Run, Segmentation
from bigvit.recipe.check import check_recipe
from bigvit.report.blocks import (
    Block,
    Chart,
    Charts,
    Gallery,
    Picture,
    Section,
    Series,
    Table,
    Text,
    Tone,
)
from bigvit.report.pictures import SIDE, heat, of_tensor, picture
from bigvit.report.skipped import ids
from bigvit.report.told import Told
from bigvit.report.words import counted, percent
from bigvit.visualize.attention import attended
from bigvit.visualize.compare import Answers, compare
from bigvit.visualize.objects import predicted_objects
from bigvit.visualize.offsets import guess
from bigvit.visualize.pixel_classes import predicted_panels
from bigvit.visualize.samples import sample_panels

ALIKE = 3  # mistakes that are shown of a class and what it is taken for
SAMPLES, ATTENDED, GUESSED, PAIRS, MISTAKES, PREDICTED = 12, 6, 4, 64, 12, 6
MATRIX = 20  # classes up to which each is told beside each
LISTED = 10  # pairs of classes, and classes, that are listed


@dataclass(frozen=True)
class Asked:
    """How a model is asked."""

    data_root: Path | None  # of all runs; None: where each found its data
    images: int  # test images, at most
    batch_size: int
    workers: int | None

    def root_of(self, told: Told) -> Path | None:
        """Where a run's data are."""
        if self.data_root is not None:
            return self.data_root
        options = told.described.get("run")
        root = options.get("data_root") if isinstance(options, dict) else None
        return None if root in (None, "None") else Path(str(root))


Part = Callable[[Told, Asked], Iterator[Block]]


def computed(runs: Sequence[Told], asked: Asked) -> Iterator[Section]:
    """Each part for each run that has what it needs."""
    parts: tuple[tuple[str, Part], ...] = (
        ("Samples", _samples),
        ("Skipped images", _skipped),
        ("Attention", _attention),
        ("Offsets", _offsets),
        ("Confusion and mistakes", _mistakes),
        ("Predictions", _predictions),
    )
    for title, part in parts:
        blocks: list[Block] = []
        for told in runs:
            found = list(_tried(part, told, asked))
            if found and len(runs) > 1:
                blocks.append(Text(f"{told.name}:"))
            blocks += found
        if blocks:
            yield Section(title, blocks)


def _tried(part: Part, told: Told, asked: Asked) -> Iterator[Block]:
    """A part, or why it is not there."""
    whole = any(not each.fault for each in told.saved)
    if told.recipe is None or part not in (_samples, _skipped) and not whole:
        return
    if part not in _fitting(told.recipe.data):
        return
    try:
        check_recipe(told.recipe)
        yield from list(part(told, asked))
    except (ValueError, OSError, BadImage) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        yield Text(f"Left out: {first}", "warning")


def _samples(told: Told, asked: Asked) -> Iterator[Block]:
    recipe = told.recipe
    assert recipe is not None
    run = Run(data_root=asked.root_of(told), classes_map=classes_map_of(told.path))
    each = 1 + sum(group.count for group in recipe.data.groups)  # with an image's views
    count = min(-(-SAMPLES // each), recipe.batch_size)
    panels = sample_panels(recipe, run, 0, count)
    pictures = [
        picture(
            of_tensor(panel.image),
            f"Training image {1 + i // each}: {', '.join(line.text for line in panel.lines)}",
            [(line.text, "plain") for line in panel.lines],
        )
        for i, panel in enumerate(panels)
    ]
    yield Text("Of the first training batch, as the model saw it: varied, mixed, with its targets.")
    yield Gallery(pictures)


def _skipped(told: Told, asked: Asked) -> Iterator[Block]:
    recipe = told.recipe
    assert recipe is not None
    if not (numbers := ids(told)):
        return
    source = open_source(recipe.data, "train", asked.root_of(told), classes_map_of(told.path))
    most = min(MISTAKES, len(numbers))
    pictures: list[Picture] = []
    for number in (numbers[i * len(numbers) // most] for i in range(most)):
        if not 0 <= number < len(source):
            continue
        name, is_ = source.name(number), source.classes[source.targets[number]]
        try:
            pixels = augment.test_image(source.open(number), recipe.data).transpose(1, 2, 0)
        except BadImage:
            continue
        pictures.append(picture(pixels, name, [(is_, "plain"), (name, "plain")]))
    yield Text(
        f"Of the batches that it rolled back past, {len(pictures)} of "
        f"{counted(len(numbers), 'image')}, "
        "as a test would see them."
    )
    yield Gallery(pictures)


@torch.no_grad()
def _attention(told: Told, asked: Asked) -> Iterator[Block]:
    model = trained(told.path)
    task, data = model.task, model.task.recipe.data
    if not data.tested:
        return
    source = open_source(data, "test", asked.root_of(told), classes_map_of(told.path))
    shown = _spread(source, data, ATTENDED)
    images = torch.stack([torch.from_numpy(pixels) for _, pixels in shown])
    maps, output = attended(task.model, Normalise(data)(images))
    if not maps:
        return
    layer, last = list(maps.items())[-1]
    sure, best = output.prediction(task.recipe.model.fusion).softmax(dim=1).max(dim=1)
    pictures: list[Picture] = []
    for i, (number, pixels) in enumerate(shown):
        heads = last[i][:, int(best[i])] if last.ndim == 4 else last[i]  # of a query a class
        mean = heads.mean(dim=0).unflatten(0, output.grid)
        is_, said = source.classes[source.targets[number]], source.classes[int(best[i])]
        tone: Tone = "good" if is_ == said else "bad"
        lines: list[tuple[str, Tone]] = [(f"{said}, {100 * float(sure[i]):.0f} %", tone)]
        if is_ != said:
            lines.append((f"is {is_}", "plain"))
        lines.append((f"a patch has {_span(mean)}", "plain"))
        alt = f"{source.name(number)}, and what is attended to in it"
        pictures.append(picture(_beside(pixels, mean), alt, lines, 2 * SIDE))
    yield Text(
        f"Test images, and beside each what the class token or the pooling query attends to in "
        f"{layer}: the mean over {counted(last.shape[1], 'head')}, the brightest where most is."
    )
    yield Gallery(pictures, wide=True)


def _span(map_hw: Tensor) -> str:
    return f"{100 * float(map_hw.min()):.2g} to {100 * float(map_hw.max()):.2g} % of it"


def _beside(pixels: np.ndarray, map_hw: Tensor) -> np.ndarray:
    """An image (C, H, W), and to its right the map upon it: (H, 2 W, 3)."""
    channels, height, width = pixels.shape
    wide = np.broadcast_to(pixels, (3, height, width)).transpose(1, 2, 0)
    factor = max(1, round(SIDE / width))
    wide = wide.repeat(factor, 0).repeat(factor, 1)
    return np.concatenate([wide, heat(wide, map_hw.numpy())], axis=1)


def _spread(source: Source, data: Data, count: int) -> list[tuple[int, np.ndarray]]:
    """Numbers and pixels (C, H, W) of test images all over a set, those that can be read."""
    found: list[tuple[int, np.ndarray]] = []
    most = min(count, len(source))
    for number in (i * len(source) // most + len(source) // (2 * most) for i in range(most)):
        try:
            found.append((number, augment.test_image(source.open(number), data)))
        except BadImage:
            continue
    if not found:
        raise ValueError("none of the test images that were tried can be read")
    return found


def _offsets(told: Told, asked: Asked) -> Iterator[Block]:
    recipe = told.recipe
    assert recipe is not None
    if not any(isinstance(each, DRLoc) for each in recipe.objectives) or not recipe.data.tested:
        return
    guesses = guess(told.path, [], GUESSED, PAIRS, asked.root_of(told))
    yield Text(
        "Dense relative localization: how far apart two tokens of an image lie, guessed against "
        f"true, in cells. {PAIRS} pairs of each of {counted(len(guesses), 'test image')}."
    )
    series: list[Series] = []
    for axis, name in enumerate(("down", "across")):
        pairs = [
            (float(true), float(guessed))
            for each in guesses
            for true, guessed in zip(each.true[:, axis], each.guessed[:, axis], strict=True)
        ]
        x, y = zip(*sorted(pairs), strict=True)
        series.append(Series(name, x, y, axis, "dots"))
    ends = [min(series[0].x), max(series[0].x)]
    series.append(Series("right", ends, ends, 5, "diagonal"))
    chart = Chart(
        "Guessed over true offsets",
        series,
        "cells",
        "true, cells",
        "Right is on the line.",
        square=True,
    )
    rows = [(each.name, each.error, each.blind) for each in guesses]
    heads = ("image", "off by, cells", "the best constant")
    yield Charts([chart, Table("Mean distance of a guess", heads, rows)])


def _mistakes(told: Told, asked: Asked) -> Iterator[Block]:
    recipe = told.recipe
    assert recipe is not None
    if not recipe.evaluated:
        return
    root = asked.root_of(told)
    answers, source, data = compare(
        [str(told.path)], None, root, asked.batch_size, asked.workers, most=asked.images
    )
    total = len(open_source(data, "test", root, classes_map_of(told.path)))
    count, right = len(answers.truth), answers.right[0]
    of = "" if total == len(source) else f" of {total:,}, evenly spaced"
    yield Text(
        f"The newest checkpoint on {counted(count, 'test image')}{of}: top-1 "
        f"{percent(100 * float(right.double().mean()))}. How sure it is lies "
        f"{100 * answers.calibration_error(0):.1f} points from how often it is right (ECE)."
    )
    matrix = _confusion(answers)
    if len(answers.classes) <= MATRIX:
        yield _matrix(answers.classes, matrix)
    if pairs := _pairs(answers.classes, matrix):
        yield Table(
            "Classes that are taken for others most often",
            ("is", "taken for", "images", "of the class"),
            pairs,
        )
    if len(answers.classes) > MATRIX:
        yield _worst(answers.classes, matrix)
    wrong = torch.nonzero(~right).flatten().tolist()
    if not wrong:
        yield Text("There are no mistakes.", "good")
        return
    wrong.sort(key=lambda i: -float(answers.sure[0, i]))
    yield Text(
        f"The most confident of {counted(len(wrong), 'mistake')}: "
        f"at most {ALIKE} of a class and what it is taken for."
    )
    yield Gallery([_mistake(answers, i, source, data) for i in _varied(answers, wrong)])


def _predictions(told: Told, asked: Asked) -> Iterator[Block]:
    recipe = told.recipe
    assert recipe is not None
    if not recipe.data.tested:
        return
    of_objects = isinstance(recipe.data, Detection)
    of = predicted_objects if of_objects else predicted_panels
    panels = of(told.path, asked.root_of(told), PREDICTED, asked.workers)
    pictures = [
        picture(
            of_tensor(panel.image),
            ", ".join(line.text for line in panel.lines),
            [(line.text, "plain") for line in panel.lines],
        )
        for panel in panels
    ]
    what = "objects in it" if of_objects else "classes of its pixels"
    yield Text(f"Test images, beside each the {what}, and those that are predicted.")
    yield Gallery(pictures)


def _fitting(data: Data) -> tuple[Part, ...]:
    """The parts that there are of such data."""
    match data:
        case Segmentation() | Detection():
            return _samples, _predictions
        case _:
            return _samples, _skipped, _attention, _offsets, _mistakes


def _varied(answers: Answers, wrong: Sequence[int]) -> list[int]:
    """The first of some mistakes, a few of a pair of classes."""
    seen: Counter[tuple[int, int]] = Counter()
    kept: list[int] = []
    for place in wrong:
        pair = int(answers.truth[place]), int(answers.best[0, place])
        seen[pair] += 1
        if seen[pair] <= ALIKE:
            kept.append(place)
    return kept[:MISTAKES]


def _mistake(answers: Answers, place: int, source: Source, data: Data) -> Picture:
    number = int(answers.ids[place])
    said = answers.classes[int(answers.best[0, place])]
    is_ = answers.classes[int(answers.truth[place])]
    sure = f"{100 * float(answers.sure[0, place]):.1f} %"
    pixels = augment.test_image(source.open(number), data).transpose(1, 2, 0)
    lines: list[tuple[str, Tone]] = [(f"{said}, {sure}", "bad"), (f"is {is_}", "plain")]
    return picture(pixels, f"{source.name(number)}: {is_}, taken for {said}", lines)


def _confusion(answers: Answers) -> np.ndarray:
    """(K, K): how many images of a class (down) are taken for one (across)."""
    classes = len(answers.classes)
    places = answers.truth * classes + answers.best[0]
    return torch.bincount(places, minlength=classes**2).view(classes, classes).numpy()


def _matrix(classes: Sequence[str], matrix: np.ndarray) -> Table:
    shares = matrix / np.maximum(1, matrix.sum(axis=1, keepdims=True))
    rows = [
        (name, *(int(cell) if cell else "" for cell in row))
        for name, row in zip(classes, matrix, strict=True)
    ]
    caption = "Confusion: a row has what a class was taken for"
    return Table(caption, ("is ↓ taken for →", *classes), rows, shares=shares.tolist())


def _pairs(classes: list[str], matrix: np.ndarray) -> list[tuple[str, str, int, str]]:
    beside = matrix.copy()
    np.fill_diagonal(beside, 0)
    order = np.argsort(-beside, axis=None, kind="stable")[:LISTED]
    found: list[tuple[str, str, int, str]] = []
    for place in order.tolist():
        is_, said = divmod(place, len(classes))
        if count := int(beside[is_, said]):
            share = 100 * count / int(matrix[is_].sum())
            found.append((classes[is_], classes[said], count, f"{share:.0f} %"))
    return found


def _worst(classes: list[str], matrix: np.ndarray) -> Table:
    totals = matrix.sum(axis=1)
    having = np.flatnonzero(totals)
    right = matrix.diagonal()[having] / totals[having]
    order = having[np.argsort(right, kind="stable")][:LISTED].tolist()
    rows = [(classes[i], f"{100 * matrix[i, i] / totals[i]:.0f} %", int(totals[i])) for i in order]
    return Table("Classes that are known worst", ("class", "right", "images"), rows)
