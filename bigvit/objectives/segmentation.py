"""UperNet on a trunk's maps (arXiv:1807.10221), and its loss, in float32.

Shapes: B images of H x W pixels, C channels, K classes.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bigvit import keyed_random, recipe
from bigvit.data.prepare import Targets
from bigvit.layers.conv_norm import SyncBatchNorm
from bigvit.layers.norm import LayerNorm
from bigvit.layers.precision import upcast
from bigvit.models.output import Output
from bigvit.models.upernet import FcnHead, Neck, UperHead, resized
from bigvit.objectives.objective import Objective
from bigvit.recipe import Recipe
from bigvit.recipe.scene import UNTOLD


class PixelClasses(Objective):
    """What `recipe.UperNet` says."""

    answers = True

    def __init__(self, objective: recipe.UperNet, whole: Recipe) -> None:
        super().__init__("segmentation", objective.weight)
        self.upernet, self.wanted = objective, tuple(sorted(set(objective.blocks)))
        maps = whole.model.maps(whole.data.image_size)
        levels, norm, classes = objective.levels(maps), objective.norm, whole.data.classes
        dims = [dim for dim, _ in levels]
        normalised = [maps[block][0] for block in self.wanted] if objective.normalised else []
        self.norms = nn.ModuleList(LayerNorm(dim, eps=1e-5) for dim in normalised)
        self.neck = Neck(dims[0], norm) if objective.uniform(levels) else None
        self.decode_head = UperHead(dims, objective.channels, objective.scales, classes, norm)
        self.auxiliary_head = None
        if objective.auxiliary:
            self.auxiliary_head = FcnHead(dims[-2], objective.auxiliary_channels, classes, norm)

    def meet(self, rank: int, world: int, device: torch.device) -> None:
        for module in self.modules():
            if isinstance(module, SyncBatchNorm):
                module.world = world

    def draws(self, name: str, seed: int, number: int, span: tuple[int, int]) -> tuple[Tensor, ...]:
        """Factors of channels (B, C), of both heads': 0, or what makes up for those."""
        drop, count = self.upernet.dropout, self.upernet.channels
        if not drop:
            return ()
        count += self.upernet.auxiliary_channels if self.auxiliary_head is not None else 0
        key = "dropout", name, seed, number
        drawn = [keyed_random.uniform(count, *key, position) for position in range(*span)]
        return (torch.from_numpy((np.stack(drawn) >= drop).astype(np.float32) / (1 - drop)),)

    def forward(self, output: Output, targets: Targets, draws: Sequence[Tensor]) -> Tensor:
        labels = targets.labels
        assert labels is not None, "data without labels of pixels"
        own, second = draws[0].split(self._channels, dim=1) if draws else (None, None)
        maps = self._maps(output)
        loss = cross_entropy(self.decode_head(maps, own), labels)
        if self.auxiliary_head is None:
            return loss
        auxiliary = cross_entropy(self.auxiliary_head(maps[-2], second), labels)
        return loss + self.upernet.auxiliary * auxiliary

    def answer(self, output: Output, size: tuple[int, int]) -> dict[str, Tensor]:
        """Logits (B, K, H, W) of an image's pixels."""
        return {"logits": resized(upcast(self.decode_head(self._maps(output), None)), size)}

    @property
    def _channels(self) -> list[int]:
        second = 0 if self.auxiliary_head is None else self.upernet.auxiliary_channels
        return [self.upernet.channels, second]

    def _maps(self, output: Output) -> list[Tensor]:
        """Of each level (B, D, h, w), finest first, in the weights' type."""
        dtype = next(self.decode_head.parameters()).dtype  # by no name: stage 3 would take it
        found: dict[int, Tensor] = {}
        for i, block in enumerate(self.wanted):
            tokens, grid = output.blocks[block]
            x = self.norms[i](upcast(tokens)) if self.norms else tokens
            found[block] = x.to(dtype).transpose(1, 2).unflatten(2, grid)
        maps = [found[block] for block in self.upernet.blocks]
        return maps if self.neck is None else self.neck(maps)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum over pixels whose class is told, divided by all pixels; a scalar.

    Args:
        logits: (B, K, h, w), which are brought to the labels' size.
        labels: (B, H, W) int64, UNTOLD where no class is told.
    """
    each = resized(upcast(logits), labels.shape[1:]).movedim(1, -1).flatten(0, 2)
    lost = F.cross_entropy(each, labels.flatten(), ignore_index=UNTOLD, reduction="sum")
    return lost / labels.numel()
