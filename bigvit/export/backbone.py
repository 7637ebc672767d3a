"""A trunk for the rest of the world: what a folder says of a model without its head, whose maps
timm's `features_only` gives."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bigvit.checkpoint.weights import HEADS
from bigvit.models import build
from bigvit.recipe import ImageSize, Model, Recipe, ResMLP, ResNet, Timm, UperNet
from bigvit.recipe.models.stages import Staged
from bigvit.recipe.models.uniform import TokenLabeled


def trunk_of(recipe: Recipe) -> Model:
    """The model as far as its trunk goes.

    Raises:
        ValueError: it is one of timm's own, or timm's has other maps.
    """
    model: Any = recipe.model
    if isinstance(model, ResMLP) and model.shift:
        raise ValueError(
            "--backbone: timm's ResMLP has no shift at the end of a branch; logits can do without "
            "(leave --backbone out), and maps would be off by a number a channel: train with "
            "--no-model.shift"
        )
    if isinstance(model, Timm):
        raise ValueError(
            f"--backbone: {model.architecture} is timm's own, whose whole export timm takes with "
            "features_only=True where it can; leave it out"
        )
    dense = isinstance(recipe.model, TokenLabeled)
    return replace(model, dense_head=False) if dense else model


def without_heads(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights but for those of the layers that classify."""
    return {name: w for name, w in weights.items() if not name.startswith(HEADS)}


def config_of(recipe: Recipe, config: Mapping[str, Any], size: ImageSize) -> dict[str, Any]:
    """A whole model's config.json as one of a trunk, which gives the maps that the recipe's head
    reads, or the last of each stage, or four of a trunk of one stride."""
    own = {"num_classes": 0, "label_names": None}
    pretrained = {**config["pretrained_cfg"], **own}
    arguments = dict(config["model_args"])
    if not isinstance(recipe.model, ResNet):  # whose maps timm counts with that of the stem
        arguments["out_indices"] = blocks_of(recipe, size)
    whole = {name: value for name, value in config.items() if name != "label_names"}
    return {**whole, "num_classes": 0, "model_args": arguments, "pretrained_cfg": pretrained}


def blocks_of(recipe: Recipe, size: ImageSize) -> list[int]:
    """The numbers of the maps, as timm counts them: stages, or blocks."""
    if isinstance(recipe.model, Staged):
        return list(range(len(recipe.model.depths)))
    if isinstance(recipe.dense, UperNet):
        return sorted(set(recipe.dense.blocks))
    with torch.device("meta"):
        return build(recipe.model, size).last_blocks()


def use(named: str, recipe: Recipe, size: ImageSize) -> Iterator[str]:
    """How a model card says that it is used."""
    yield "## Use\n"
    yield (
        "```python\n"
        "import timm\n\n"
        f'trunk = timm.create_model("{named}", pretrained=True, features_only=True)\n'
        "maps = trunk.eval()(images)\n"
        "```\n"
    )
    what = "of the stem and of each stage" if isinstance(recipe.model, ResNet) else ""
    what = what or (
        "of each stage"
        if isinstance(recipe.model, Staged)
        else f"of the blocks {', '.join(map(str, blocks_of(recipe, size)))}, counted from 0"
    )
    yield (
        f"`images` are normalised as `config.json` says. There is a map {what}: what the block "
        "leaves, not normalised. There is no head that classifies.\n"
    )
