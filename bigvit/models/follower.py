# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""A second network whose weights are the average of the first one's over updates: BYOL's target
(arXiv:2006.07733), DINO's teacher (arXiv:2104.14294).

Shapes: B images, V views of each, D what is pooled before the head.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

FOLLOWER = "follower."
"""What its weights' names in a task begin with, before those of the weights that they follow."""

TRUNK = ""
"""Instead of an objective's name: what the model itself makes."""


class Follower(nn.Module):
    """A copy of a model, and of what objectives have followed behind it. Nothing of it is trained,
    initialised or saved: engines copy the average into it, which is all of that.

    It drops nothing, and its BatchNorm computes with each batch's own statistics.
    """

    def __init__(self, model: Any, heads: Mapping[str, Mapping[str, nn.Module]]) -> None:
        """Args:
        model: a `Backbone`.
        heads: by an objective's name in the task, by the name of its submodule there.
        """
        super().__init__()
        self.model = model
        self.heads = nn.ModuleDict({name: nn.ModuleDict(dict(of)) for name, of in heads.items()})
        self.requires_grad_(False)
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):  # pyright: ignore[reportPrivateUsage]
                module.running_mean = module.running_var = module.num_batches_tracked = None

    @torch.no_grad()
    def forward(self, views: Mapping[int, Tensor]) -> dict[str, dict[int, Tensor]]:
        """Views (B, V, C, h, w) by group, in the model's type -> what is pooled before the head
        (B, V, D) by group, float32, as `TRUNK`; and under an objective's name what its copy makes
        of that."""
        pooled = {group: pooled_of(self.model, images) for group, images in views.items()}
        found: dict[str, dict[int, Tensor]] = {TRUNK: pooled}
        for name, of in self.heads.items():
            (head,) = of.children()
            found[name] = {
                group: head(each.flatten(0, 1)).unflatten(0, each.shape[:2])
                for group, each in pooled.items()
            }
        return {
            name: {group: each.float() for group, each in of.items()} for name, of in found.items()
        }


def pooled_of(model: Any, views: Tensor, draws: Any = None) -> Tensor:
    """What a `Backbone` pools before its head of views (B, V, C, h, w): (B, V, D)."""
    return model(views.flatten(0, 1), draws).cls.unflatten(0, views.shape[:2])
