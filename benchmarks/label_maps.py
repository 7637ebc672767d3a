"""What label maps cost: a data process, the device's targets, and an update.

    python -m benchmarks.label_maps [--small] [--check]

A data process reads, checks and copies a map of 18 x 18 cells, top 5, beside an image of 500 x 375
in about 110 KB, which it decodes, crops to 224 and passes through RandAugment, as LV-ViT's recipes
do, or only crops and flips. Maps are found among 1,281,167 names. Then targets at 14 x 14 of 1,000
classes, beside torchvision's `roi_align` as the authors' code calls it; and forward and backward of
LV-ViT-S with its head on patches and without. In one thread.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision.ops import roi_align

from benchmarks.loader import files
from benchmarks.measure import Row, arguments, interleaved, ratio, report
from bigvit.data import augment
from bigvit.data.decode import Photo
from bigvit.data.label_maps.cropping import BOX, SparseMaps, aligned
from bigvit.data.label_maps.form import Form, Teacher
from bigvit.data.label_maps.maps import LabelMaps
from bigvit.data.prepare import Inputs, Prepare, Targets
from bigvit.labelling.write import Writer
from bigvit.ranks.joining import alone
from bigvit.recipe import CrossEntropy, Images, Recipe, sides
from bigvit.recipe.find import find_recipe
from bigvit.task import Task

CELLS, TOP, CLASSES = (18, 18), 5, 1000
IMAGES = 1_281_167
SHARE = 1.05  # of a data process's time without maps: the goal


class Named:
    """Images that have names, and nothing else."""

    def __init__(self, count: int) -> None:
        self.names = [f"train/n{i // 1300:08d}/n{i // 1300:08d}_{i}.JPEG" for i in range(count)]
        self.classes = [f"n{i:08d}" for i in range(CLASSES)]

    def __len__(self) -> int:
        return len(self.names)

    def all_names(self) -> Iterator[bytes]:
        yield b"".join(name.encode() + b"\0" for name in self.names)


def written(source: Any, folder: Path, cells: tuple[int, int], top: int) -> LabelMaps:
    """Maps of random scores."""
    form = Form(0, cells, top, tuple(source.classes), 1 << 16, "", Teacher("none", "0", (576, 576)))
    writer, random = Writer(folder, form, source, alone()), np.random.default_rng(0)
    for number in writer.todo:
        shape = (len(writer.form.rows(number)), *cells, top)
        scores = -np.sort(-random.normal(0, 4, shape), axis=-1)
        writer.write(number, random.integers(0, CLASSES, shape), scores)
    return writer.finish()


def reading(folder: Path, small: bool) -> list[Row]:
    """A data process with maps and without."""
    recipe = find_recipe("lv_vit_s_in1k_224_tokens")[1]
    assert isinstance(recipe.data, Images)
    count, rounds = (4, 2) if small else (32, 21)
    contents = files(110_000, count)
    source = Named(count)
    maps = written(source, folder / "few", CELLS, TOP)
    many = Named(2000 if small else IMAGES)
    lookup = written(many, folder / "many", (1, 1), 1)
    drawn = np.random.default_rng(1).integers(0, len(many), count)
    where = np.empty(BOX + 12)
    slots = np.empty((*CELLS, TOP), np.int32), np.empty((*CELLS, TOP), np.float16)

    def image(data: Images, number: int) -> Any:
        photo = Photo(contents[number], "")
        made = augment.draw(data, 0, 0, number, photo.size)
        augment.apply(photo, made)
        return made, photo.size

    def mapped(data: Images, number: int) -> None:
        made, size = image(data, number)
        numbers = (*made.box(size), float(made.flip), *made.affines(data))
        where[: len(numbers)] = numbers
        lookup.row(many.names[drawn[number]])
        classes, scores = maps.read(source.names[number])
        slots[0][:], slots[1][:] = classes, scores

    def each(one: Callable[[int], object]) -> None:
        for number in range(count):
            one(number)

    rows = list[Row]()
    plain = replace(recipe.data, augment=None, erasing=0.0)
    for label, data in (("cropped, RandAugment", recipe.data), ("cropped and flipped", plain)):
        runs = {"without": partial(image, data), "with": partial(mapped, data)}
        seconds = interleaved({name: partial(each, one) for name, one in runs.items()}, rounds)
        for name, took in seconds.items():
            per_second = count / float(np.median(took))
            rows.append(Row(f"{label}: images/s and core, {name} maps", f"{per_second:.0f}"))
        over = ratio(seconds["with"], seconds["without"])
        goal = f"<= {SHARE}"
        interval = f"{over.low:.3f} to {over.high:.3f}"
        what = f"{label}: time with maps over without"
        rows.append(Row(what, f"{over.value:.3f}", interval, goal, over.value <= SHARE))
    return rows


def theirs(maps: SparseMaps, boxes: torch.Tensor) -> torch.Tensor:
    """As the authors make them: written out image by image, then `roi_align`."""
    batch, height, width, _ = maps.classes.shape
    dense = torch.zeros(batch, CLASSES, height, width)
    for one, classes, scores in zip(dense, maps.classes, maps.scores, strict=True):
        one.scatter_(0, classes.permute(2, 0, 1).long(), scores.permute(2, 0, 1).float())
    return roi_align(dense, boxes, (14, 14), aligned=True).softmax(dim=1)


def targets(small: bool) -> list[Row]:
    """Milliseconds an image, of the same crops."""
    count, rounds = (2, 2) if small else (16, 11)
    random = torch.Generator().manual_seed(0)
    places = torch.rand(count, 2, generator=random).double() / 2
    box = torch.cat([places, places + 0.4, torch.zeros(count, 1).double()], dim=1)
    still = torch.tensor([1.0, 0, 0, 0, 1, 0] * 2).double().expand(count, -1)
    scores = torch.randn(count, *CELLS, TOP, generator=random).half()
    classes = torch.rand(count, *CELLS, CLASSES, generator=random).topk(TOP).indices.int()
    upright = SparseMaps(box, classes, scores)
    turned = SparseMaps(torch.cat([box, still], dim=1), classes, scores)
    boxes = torch.cat([torch.arange(count)[:, None], box[:, :4] * CELLS[0]], dim=1).float()
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: aligned(upright, (14, 14), CLASSES).softmax(dim=-1),
        "ours, with RandAugment's places": lambda: aligned(turned, (14, 14), CLASSES).softmax(-1),
        "torchvision's roi_align": partial(theirs, upright, boxes),
    }
    found = interleaved(runs, rounds)
    each = {name: 1e3 * float(np.median(took)) / count for name, took in found.items()}
    return [
        Row(f"targets at 14 x 14, ms an image: {name}", f"{ms:.2f}") for name, ms in each.items()
    ]


def step(recipe: Recipe, count: int) -> Callable[[], object]:
    """Forward and backward of so many images."""
    task = Task(recipe)
    task.init_weights()
    random, size = torch.Generator().manual_seed(0), sides(recipe.data.image_size)
    made = Prepare(recipe)
    images = torch.randn(count, 3, *size, generator=random)
    shares = torch.randn(count, *made.grid, CLASSES, generator=random).softmax(dim=-1)
    classes = torch.zeros(count, dtype=torch.int64)
    dense = shares.mean(dim=(1, 2))
    inputs = Inputs(images, Targets(classes, dense, None, shares), task.draws(0, (0, count)), 0)

    def run() -> None:
        losses: Sequence[torch.Tensor] = list(task(inputs).values())
        torch.stack(list(losses)).sum().backward()

    return run


def steps(small: bool) -> list[Row]:
    """An update's forward and backward pass, with the head on patches and without."""
    recipe = find_recipe("lv_vit_s_in1k_224_tokens")[1]
    recipe = replace(recipe, precision="fp32")
    if small:
        recipe = replace(recipe, model=replace(recipe.model, depth=1))
    bare = replace(
        recipe,
        model=replace(recipe.model, dense_head=False),
        objectives=(CrossEntropy(1.0, 0.1, class_weights=None),),
    )
    count, rounds = (8, 2) if small else (8, 7)
    took = interleaved({"with": step(recipe, count), "without": step(bare, count)}, rounds)
    over = ratio(took["with"], took["without"])
    interval = f"{over.low:.3f} to {over.high:.3f}"
    what = "LV-ViT-S, forward and backward: with the head on patches over without"
    return [Row(what, f"{over.value:.3f}", interval)]


def main() -> int:
    options = arguments("What label maps cost.")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = reading(Path(folder), options.small)
    rows += targets(options.small) + steps(options.small)
    return report("Label maps", rows, options.check)


if __name__ == "__main__":
    sys.exit(main())
