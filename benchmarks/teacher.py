"""What a teacher costs beside the step of its student.

    python -m benchmarks.teacher [--small] [--check]

A ViT learns from a ResNet at one thread: the time of an update with the teacher over one without,
its share of the update by our clock (what the log says) and by the difference of both, and how many
copies of the images are made for it. Rows of docs/performance.md.
"""

import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Row, arguments, interleaved, ratio, report
from bigvit.data.batch import Batch, Draws
from bigvit.data.mix import draw
from bigvit.data.prepare import Prepare
from bigvit.engines.build import build_engine, outline
from bigvit.engines.teacher import Teaching
from bigvit.plan.activations import executed_macs
from bigvit.ranks.joining import alone
from bigvit.recipe import (
    AveragePooling,
    Layout,
    Rates,
    Recipe,
    ResNet,
    Run,
    SoftDistillation,
    Teacher,
)
from bigvit.recipes.photos import photos_vit_64

BATCH = 32


def pair(small: bool) -> Recipe:
    """A student and its teacher, of one size and normalisation."""
    data, model = photos_vit_64.data, photos_vit_64.model
    if not small:
        model = replace(model, embed_dim=192, depth=12, num_heads=3)
    depths = (1, 1) if small else (2, 2, 2, 2)
    teacher = ResNet(depths, AveragePooling(), None, False, 3, model.num_classes)
    return replace(
        photos_vit_64,
        model=model,
        batch_size=BATCH,
        objectives=(
            *photos_vit_64.objectives,
            SoftDistillation(weight=0.1, tau=3.0, mean="images", head="class"),
        ),
        teacher=Teacher(teacher, data.image_size, data.mean, data.std, "fp32"),
    )


def batch(recipe: Recipe, draws: Draws) -> Batch:
    """Noise."""
    generator = torch.Generator().manual_seed(0)
    size: Any = recipe.data.image_size
    shape, places = (BATCH, 3, size, size), torch.arange(BATCH)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    own, real = places % recipe.model.num_classes, torch.ones(BATCH, dtype=torch.bool)
    mix = draw(recipe.data, 0, 0, (0, BATCH))
    return Batch(images, own, places, places, 0, 0, real, places[:0], mix, draws)


def taught(recipe: Recipe) -> Teaching:
    """The teacher, with weights as at the start of a training."""
    made = Teaching(recipe, alone(), sharded=False)
    for name in made.model.state_dict():
        weight = 0.02 * torch.randn(made.held[name].shape)
        made.put(name, torch.ones_like(weight) if name.endswith("running_var") else weight)
    return made


def copies(teaching: Teaching, images: torch.Tensor) -> int:
    """Of the images, between the student's and the model of the teacher."""
    seen: list[int] = []
    hook = teaching.model.register_forward_pre_hook(lambda _, x: seen.append(x[0].data_ptr()))
    teaching(images)
    hook.remove()
    return int(seen != [images.data_ptr()])


def main() -> int:
    options = arguments(__doc__ or "")
    torch.set_num_threads(1)
    recipe = pair(options.small)
    plain = replace(recipe, objectives=photos_vit_64.objectives, teacher=None)
    layout, run = Layout(1, BATCH, 1), Run(engine="single")
    teaching = taught(recipe)
    runs: dict[str, Any] = {}
    for name, each, teacher in (("with", recipe, teaching), ("without", plain, None)):
        engine = build_engine(each, run, layout, alone())
        prepare = Prepare(each, teacher=teacher)
        one = [batch(each, outline(each).draws(0, (0, BATCH)))]
        runs[name] = lambda e=engine, p=prepare, b=one: e.update(p.later(b), Rates(1e-3))
    shares: list[float] = []

    def watched() -> None:
        teaching.watch.begin()
        began = time.perf_counter()
        runs["with"]()
        shares.append(teaching.watch.seconds() / (time.perf_counter() - began))

    rounds = 3 if options.small else 31
    seconds = interleaved({"with": watched, "without": runs["without"]}, rounds)
    found, own = ratio(seconds["with"], seconds["without"]), float(np.median(shares[1:]))
    assert recipe.teacher is not None
    its = recipe.teacher.model.macs(recipe.teacher.image_size)
    macs = executed_macs(plain)
    images = Prepare(plain)(one[0]).images
    same = copies(teaching, images)
    other = replace(recipe, teacher=replace(recipe.teacher, mean=(0.5, 0.5, 0.5)))
    rows = [
        Row(
            "update with a teacher over one without",
            f"{found.value:.3f}",
            f"{found.low:.3f} to {found.high:.3f}",
        ),
        Row("its share of the update, as logged: %", f"{100 * own:.1f}"),
        Row("the same by the difference: %", f"{100 * (1 - 1 / found.value):.1f}"),
        Row(
            "its share of the products: %",
            f"{100 * its / (its + macs.forward + macs.backward):.1f}",
        ),
        Row("copies of the images for it", f"{same}", "", "0", same == 0),
        Row("the same with another mean", f"{copies(taught(other), images)}", "", "", None),
    ]
    student = f"{plain.model.macs(recipe.data.image_size) / 1e6:.0f} M"
    title = f"A teacher of {its / 1e6:.0f} M products and a student of {student}, fp32, one thread"
    return report(title, rows, options.check)


if __name__ == "__main__":
    sys.exit(main())
