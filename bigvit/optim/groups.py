"""Parameter groups: which weight decay and which share of the learning rate a parameter has, and
what steps it."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from torch import Tensor, nn

from bigvit.recipe import Muon, Recipe
from bigvit.recipe.muon import parts_of
from bigvit.task import Task


def parameter_groups(
    parameters: Mapping[str, nn.Parameter],
    trained: set[str],
    task: Task,
    recipe: Recipe,
    shape_of: Callable[[Tensor], Sequence[int]] = lambda p: p.shape,
) -> list[dict[str, Any]]:
    """Groups for an optimizer, each with its `weight_decay` and `lr_scale`, and whether it is
    `decayed`, and `held` back at first; of Muon's also whether they are `matrices`, which AdamW
    does not step.

    Matrices are decayed; vectors, class tokens and positions are not. With a layer decay d, layer l
    of L has a share d**(L - l) of the learning rate.

    Args:
        parameters: by name, in the model's order; those that the optimizer updates.
        trained: names of those that are not frozen.
        shape_of: a parameter's whole shape, where it lies in pieces.
    """
    groups: dict[tuple[int, bool, bool, bool], dict[str, Any]] = {}
    no_decay, held = task.no_weight_decay(), task.held
    own = {name: shape_of(p) for name, p in parameters.items()}
    hidden = matrices(task, recipe, own)
    for name, p in parameters.items():
        if name not in trained:
            continue
        decayed = len(own[name]) >= 2 and name not in no_decay
        layer = task.layer_id(name) if recipe.layer_decay != 1 else task.layers
        group = {
            "params": [],
            "weight_decay": recipe.optim.weight_decay if decayed else 0.0,
            "lr_scale": recipe.layer_decay ** (task.layers - layer),
            "decayed": decayed,
            "held": name in held,
        }
        if isinstance(recipe.optim, Muon):
            group["matrices"] = name in hidden
            group["lr_scale"] *= 1.0 if name in hidden else recipe.optim.adamw_lr_ratio
        key = layer, not decayed, name not in hidden, name in held
        groups.setdefault(key, group)["params"].append(p)
    return [groups[key] for key in sorted(groups)]


def matrices(task: Task, recipe: Recipe, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Names of what Muon orthogonalises, and how many matrices lie above each other there: hidden
    weights that are decayed, with more than a row and a column. None where the recipe has another
    optimizer.

    Args:
        shapes: whole parameters', by name.
    """
    if not isinstance(recipe.optim, Muon):
        return {}
    no_decay = task.no_weight_decay()
    found: dict[str, int] = {}
    for name, shape in shapes.items():
        if len(shape) < 2 or name in no_decay or not task.hidden(name):
            continue
        parts = parts_of(name) if recipe.optim.qkv == "split" else 1
        parts = parts if shape[0] % parts == 0 else 1
        if shape[0] > parts and prod(shape[1:]) > 1:
            found[name] = parts
    return found
