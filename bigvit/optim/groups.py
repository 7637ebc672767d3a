"""Parameter groups: which weight decay and which share of the learning rate a parameter has."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from bigvit.recipe import Recipe
from bigvit.task import Task


def parameter_groups(
    parameters: Mapping[str, nn.Parameter],
    trained: set[str],
    task: Task,
    recipe: Recipe,
    shape_of: Callable[[Tensor], Sequence[int]] = lambda p: p.shape,
) -> list[dict[str, Any]]:
    """Groups for an optimizer, each with its `weight_decay` and `lr_scale`.

    Matrices are decayed; vectors, class tokens and positions are not. With a layer decay d, layer l
    of L has a share d**(L - l) of the learning rate.

    Args:
        parameters: by name, in the model's order; those that the optimizer updates.
        trained: names of those that are not frozen.
        shape_of: a parameter's whole shape, where it lies in pieces.
    """
    groups: dict[tuple[int, bool], dict[str, Any]] = {}
    no_decay = task.no_weight_decay()
    for name, p in parameters.items():
        if name not in trained:
            continue
        decayed = len(shape_of(p)) >= 2 and name not in no_decay
        layer = task.layer_id(name) if recipe.layer_decay != 1 else task.layers
        group = {
            "params": [],
            "weight_decay": recipe.optim.weight_decay if decayed else 0.0,
            "lr_scale": recipe.layer_decay ** (task.layers - layer),
        }
        groups.setdefault((layer, not decayed), group)["params"].append(p)
    return [groups[key] for key in sorted(groups)]
