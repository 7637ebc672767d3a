"""ResNet (arXiv:1512.03385) from timm's blocks, with the names and shapes of timm's `resnet50`.

Shapes: B images, N positions of a grid h x w, D channels.
"""

import math
from typing import Any

import torch
from timm.models.resnet import Bottleneck
from timm.models.resnet import ResNet as TimmResNet
from torch import Tensor, nn

from bigvit.layers.batch_norm import BatchNorm
from bigvit.layers.stochastic_depth import recomputed
from bigvit.models.backbone import Backbone, Walk
from bigvit.models.output import Features, TokenMap
from bigvit.recipe import ImageSize, ResNet


class ResidualNetwork(Backbone):
    """ResNet: stem, stages of bottleneck blocks, and a linear head on the mean."""

    def __init__(self, model: ResNet, _image_size: ImageSize) -> None:
        super().__init__()
        self.config = model
        made = TimmResNet(
            Bottleneck,  # type: ignore[arg-type]
            model.depths,  # type: ignore[arg-type]
            model.num_classes,
            model.in_chans,
            channels=tuple(64 * 2**i for i in range(len(model.depths))),
            norm_layer=BatchNorm,  # type: ignore[arg-type]
        )
        for name, child in made.named_children():
            self.add_module(name, child)
        for block in self.all_blocks():
            block.recompute = False

    def features(self, images: Tensor, walk: Walk) -> Features:
        stem: Any = self
        x_BDhw = stem.maxpool(stem.act1(stem.bn1(stem.conv1(images))))
        for i, block in enumerate(self.all_blocks()):
            x_BDhw = recomputed(block, x_BDhw) if block.recompute else block(x_BDhw)
            if i in walk.wanted:
                walk.maps[i] = _tokens(x_BDhw)
        tokens, grid = _tokens(x_BDhw)
        return Features(tokens, grid, (), walk.maps, tokens)

    def classify(self, pooled: Tensor) -> Tensor:
        """(B, D) -> logits (B, K)."""
        return self.get_submodule("fc")(pooled)

    def all_blocks(self) -> list[Any]:
        """The blocks, first to last."""
        stages = range(1, len(self.config.depths) + 1)
        return [block for i in stages for block in self.get_submodule(f"layer{i}").children()]

    def begin(self, name: str, value: Tensor, generator: torch.Generator) -> Tensor | None:
        """Convolutions by their outputs (arXiv:1502.01852); the last norm of a branch with 0, so
        that a block begins as its shortcut."""
        module, _, own = name.rpartition(".")
        if module.endswith(".bn3") and own == "weight":
            return value
        if isinstance(conv := self.get_submodule(module), nn.Conv2d):
            fan_out = conv.out_channels * math.prod(conv.kernel_size)
            return value.normal_(generator=generator).mul_(math.sqrt(2 / fan_out))
        return None

    def no_weight_decay(self) -> set[str]:
        """Names of matrices that are not decayed: none."""
        return set()

    def layer_id(self, name: str) -> int:
        """Depth of a parameter: 0 the stem, i the i-th block, depth + 1 the head."""
        if not name.startswith("layer"):
            return self.config.depth + 1 if name.startswith("fc.") else 0
        stage, block = name.removeprefix("layer").split(".")[:2]
        return sum(self.config.depths[: int(stage) - 1]) + int(block) + 1


def _tokens(x: Tensor) -> TokenMap:
    h, w = x.shape[2:]
    return TokenMap(x.flatten(2).transpose(1, 2), (h, w))
