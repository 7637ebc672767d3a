"""What the class token, or what pools by attention, attends to (thesis figures 3.9, 3.10, 5.5 and
5.6), in numbers.

Shapes: L attention layers, or queries of a layer; H heads, h x w patches of an image, K classes.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bigvit.checkpoint.run import class_names, run_of
from bigvit.checkpoint.trained import Trained
from bigvit.data import augment
from bigvit.data.decode import image_of
from bigvit.data.prepare import Normalise
from bigvit.layers.attention import Attention
from bigvit.layers.class_attention import ClassAttention
from bigvit.models import Backbone, Output
from bigvit.task import Task


class AttentionMaps(NamedTuple):
    """An image, what was attended to in it, and what it was taken for."""

    name: str  # of its file
    pixels: NDArray[np.uint8]  # (H, W, 3), as the model saw it
    # names of the attention layers, and of the classes whose query it is, where each has one
    layers: list[str]
    maps: Tensor  # (L, H, h, w): of each of them and each head, the patches' shares
    predictions: list[tuple[float, str]]  # probability and class, the most probable first


def attention_maps(
    model: Trained,
    images: Sequence[Path],
    layers: int | None = None,
    classes: int | None = None,
) -> list[AttentionMaps]:
    """Show a trained model some images, prepared as test images are.

    Args:
        layers: the last so many; None for two, or one where there are no more.
        classes: of a query a class, those of the so many most probable classes; None for three.

    Raises:
        ValueError: an image cannot be read, or the model has no class token, or fewer layers, or no
            query a class.
    """
    task = model.task
    if classes is not None and not _by_class(task.model):
        raise ValueError(
            f"--classes: {classes} is not allowed; this model has no query a class; leave it out"
        )
    count = task.recipe.model.num_classes
    names = class_names(run_of(model.checkpoint), count) or []
    names += map(str, range(len(names), count))
    return [_maps_of(task, path, names, layers, classes or 3) for path in images]


def _by_class(model: Backbone) -> bool:
    """Whether each class has a query of its own."""
    return model.attends and model.config.pooling.queries == "classes"


@torch.no_grad()
def _maps_of(
    task: Task, path: Path, classes: list[str], layers: int | None, most: int
) -> AttentionMaps:
    data = task.recipe.data
    pixels = torch.from_numpy(augment.test_image(image_of(path, data), data))
    maps, output = attended(task.model, Normalise(data)(pixels[None]))
    if not maps:
        raise ValueError("this model has no class token or query whose attention could be shown")
    if layers is not None and layers > len(maps):
        raise ValueError(
            f"--layers: {layers} is not allowed; this model has {len(maps)} attention layers with "
            "a class token"
        )
    last = list(maps)[-(layers or 2) :]
    logits = output.prediction(task.recipe.model.fusion)[0]
    shares, best = logits.softmax(dim=0).topk(min(5, len(classes)))
    predictions = [(p, classes[i]) for p, i in zip(shares.tolist(), best.tolist(), strict=True)]
    if _by_class(task.model):
        (name,), top = last, best[:most].tolist()
        last = [f"{classes[i]}, {name}" for i in top]
        stacked = maps[name][0, :, top].transpose(0, 1)
    else:
        stacked = torch.cat([maps[name] for name in last])
    shown = pixels.permute(1, 2, 0).expand(-1, -1, 3).numpy()
    return AttentionMaps(path.name, shown, last, stacked.unflatten(2, output.grid), predictions)


def attended(model: Backbone, images: Tensor) -> tuple[dict[str, Tensor], Output]:
    """What the class token, or what pools, attends to in images (B, C, H, W), normalised.

    Returns:
        The patches' shares (B, H, h * w) in each head of the attention layers that see it, by the
        layer's name, in order, (B, H, K, h * w) where each class has a query; and what the model
        returned.
    """
    seen: list[tuple[Any, Tensor]] = []
    names = {
        module: name
        for name, module in model.named_modules()
        if isinstance(module, Attention | ClassAttention)
    }
    with ExitStack() as hooks:
        for module in names:
            watch = module.register_forward_pre_hook(lambda module, x: seen.append((module, *x)))
            hooks.enter_context(watch)
        output = model(images)
    found: dict[str, Tensor] = {}
    for module, x in seen:
        maps = module.maps(x).cpu()  # those of a dispatched model lie on several devices
        if isinstance(module, ClassAttention):
            found[names[module]] = maps if _by_class(model) else maps[:, :, 0]
        elif x.shape[1] > (patches := output.tokens.shape[1]):  # the class token is the first
            found[names[module]] = maps[:, :, 0, -patches:]
    return found, output
