"""What every model has beside its forward pass."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from bigvit.layers.stochastic_depth import Span, draw
from bigvit.models.init import initial_weight


class Backbone(nn.Module, ABC):
    """A model made of blocks, each of which can be recomputed or compiled by itself."""

    config: Any  # the recipe's model

    @abstractmethod
    def all_blocks(self) -> list[Any]:
        """The blocks, first to last."""

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """Initialise in place; the same weights for the same seed, wherever it is built."""
        for name, parameter in self.named_parameters():
            parameter.copy_(self.initial_weight(name, seed))

    def initial_weight(self, name: str, seed: int) -> Tensor:
        """What `init_weights` would give a parameter, float32."""
        return initial_weight(self, name, seed)

    def takes(self, name: str) -> bool:
        """Whether a parameter starts from given weights, where there are some."""
        return True

    def draws(self, seed: int, number: int, span: Span) -> dict[str, Tensor]:
        """Everything random of a training forward pass over positions [start, stop) of a batch."""
        return draw(self.config.drop_path, self.config.branches, seed, number, span)

    def recompute(self, share: float) -> None:
        """Recompute this share of the blocks in backward, spread evenly over the depth."""
        blocks = self.all_blocks()
        depth = len(blocks)
        total = round(share * depth)
        for i, block in enumerate(blocks):
            block.recompute = (i + 1) * total // depth > i * total // depth

    def compile_blocks(self) -> None:
        """Compile each block in place: names stay, and what blocks share is compiled once."""
        # one for each way of keeping samples, recomputed or not, and evaluation: 8 are too few
        torch._dynamo.config.recompile_limit = max(32, torch._dynamo.config.recompile_limit)
        for block in self.all_blocks():
            block.compile(dynamic=False)

    @abstractmethod
    def no_weight_decay(self) -> set[str]:
        """Names of matrices that are not decayed."""

    @abstractmethod
    def layer_id(self, name: str) -> int:
        """Depth of a parameter: 0 the embedding, i the i-th block, depth + 1 norm and head."""
