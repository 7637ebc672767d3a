"""Rows of `benchmarks/plan.py`: bytes kept for backward as `bigvit.plan` predicts them, beside what
autograd keeps on this CPU. Counts, which do not depend on the machine."""

from dataclasses import replace
from functools import partial

import torch
from torch.utils._pytree import tree_map_only

from benchmarks.activations import kept_bytes
from benchmarks.measure import Row
from bigvit.data.prepare import Inputs, Targets
from bigvit.plan import activations
from bigvit.recipe import (
    CaiT,
    ClassAttention,
    CvT,
    DeiT,
    DistillationToken,
    HardDistillation,
    ImageSize,
    LayerScale,
    LinearStochasticDepth,
    Model,
    ParallelViT,
    Recipe,
    ResNet,
    StochasticDepth,
    Swin,
    T2TViT,
    ViT,
    sides,
)
from bigvit.recipes.deit3 import deit3_b16_in1k_224 as published
from bigvit.task import DTYPES, Task

BATCH, GROUP, CLASSES = 8, 8, 1000
MOST = 0.03
WAYS = {  # what: rate of stochastic depth, share of the blocks recomputed
    "nothing dropped": (0.0, 0.0),
    "0.5 skipped": (0.5, 0.0),
    "half recomputed": (0.0, 0.5),
    "all recomputed": (0.0, 1.0),
    "0.5 skipped, half recomputed": (0.5, 0.5),
}


def recipe_of(model: Model, image_size: ImageSize, precision: str) -> Recipe:
    """DeiT III's recipe with another model, for images of another size; a distillation token's head
    learns, too."""
    data, objectives = replace(published.data, image_size=image_size), published.objectives
    if model.fusion:
        objectives += (HardDistillation(weight=0.5, head="distillation"),)
    return replace(published, model=model, data=data, objectives=objectives, precision=precision)


def found(recipe: Recipe, recomputed: float, batch: int = BATCH) -> int:
    """Bytes that autograd keeps of a micro-batch."""
    task = Task(recipe)
    task.init_weights()
    task.model.recompute(recomputed)
    task.to(DTYPES[recipe.precision]).train()
    inputs = inputs_of(task, batch)
    return kept_bytes(task, lambda: torch.stack(list(task(inputs).values())))


def inputs_of(task: Task, batch: int) -> Inputs:
    """The first micro-batch's, of images without meaning, where new tensors are made."""
    recipe = task.recipe
    images = torch.randn(batch, recipe.model.in_chans, *sides(recipe.data.image_size))
    nothing = torch.zeros(batch, recipe.model.num_classes)
    targets = Targets(torch.arange(batch), nothing, nothing)
    to_there = partial(torch.Tensor.to, device=images.device)
    draws = tree_map_only(torch.Tensor, to_there, task.draws(0, (0, batch)))
    return Inputs(images, targets, draws, 0)


def predicted_over_found(recipe: Recipe, recomputed: float, batch: int = BATCH) -> float:
    """Their ratio."""
    return activations.kept_bytes(recipe, batch, recomputed) / found(recipe, recomputed, batch)


def models(small: bool, drop: StochasticDepth) -> dict[str, tuple[Model, ImageSize]]:
    """One of each kind, with the size of its images."""
    side, depth = (96, 6) if small else (224, 12)
    oblong = (side, 2 * side // 3 // 32 * 32)
    linear, token = (
        LinearStochasticDepth(drop.rate, drop.group),
        DistillationToken("softmax", False),
    )
    second = ClassAttention(depth=2, keys="class and patches")
    return {
        "ViT": (ViT(16, 192, depth, 3, 4.0, 1e-4, drop, 3, CLASSES), side),
        "ParallelViT": (ParallelViT(16, 192, depth // 2, 2, 3, 4.0, 1e-4, drop, 3, CLASSES), side),
        "DeiT": (DeiT(16, 192, depth, 3, 4.0, token, linear, 3, CLASSES), side),
        "CaiT": (
            CaiT(16, 192, depth, 4, 4.0, True, LayerScale(1e-5), second, None, drop, 3, CLASSES),
            oblong,
        ),
        "Swin": (Swin(4, 48, (2, 2, 2), (3, 6, 12), 7, 4.0, drop, 3, CLASSES), oblong),
        "T2T-ViT": (T2TViT(64, 256, depth, 4, 3.0, drop, 3, CLASSES), side),
        "CvT": (CvT((64, 128, 192), (1, 2, depth - 3), (1, 2, 3), 4.0, drop, 3, CLASSES), oblong),
        "ResNet": (ResNet((2, 2, 2, 2), 3, CLASSES), side),
    }


def rows(small: bool) -> list[Row]:
    """A model, a way and a precision each."""
    table: list[Row] = []
    for precision in ("fp32", "bf16"):
        for way, (rate, recomputed) in WAYS.items():
            for name, (model, size) in models(small, StochasticDepth(rate, GROUP)).items():
                if isinstance(model, ResNet) and rate:
                    continue  # drops nothing
                ratio = predicted_over_found(recipe_of(model, size, precision), recomputed)
                what = f"activation bytes predicted / kept, {precision}: {name}, {way}"
                ok = abs(ratio - 1) <= MOST
                table.append(Row(what, f"{ratio:.4f}", "", f"within {MOST:.0%}", ok))
    return table
