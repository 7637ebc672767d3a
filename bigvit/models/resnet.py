"""ResNet (arXiv:1512.03385) from timm's blocks, with the names and shapes of timm's `resnet50`.

Shapes: B images, N positions of a grid h x w, D channels.
"""

import math
from collections import OrderedDict
from typing import Any

import torch
from timm.models.resnet import Bottleneck
from timm.models.resnet import ResNet as TimmResNet
from torch import Tensor, nn

from bigvit.layers.batch_norm import BatchNorm
from bigvit.layers.norm import LayerNorm
from bigvit.layers.stochastic_depth import recomputed
from bigvit.models.backbone import Backbone, Walk
from bigvit.models.output import Features, TokenMap
from bigvit.recipe import ImageSize, ResNet


class ResidualNetwork(Backbone):
    """ResNet: stem, stages of bottleneck blocks, and a head of one or two layers on the mean, or of
    one on what attention pools."""

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
        width = 256 * 2 ** (len(model.depths) - 1)
        self.fc = self._head_on(width)
        if self.attends:
            self.norm = LayerNorm(width)
        for block in self.all_blocks():
            block.recompute = False

    def _head_on(self, width: int) -> nn.Module:
        """One linear layer, or two with BatchNorm and ReLU between (Grafit, thesis 2.4.6)."""
        if (hidden := self.config.head_hidden_dim) is None:
            return self.head_on(width)
        layers = {
            "hidden": nn.Linear(width, hidden),
            "norm": BatchNorm(hidden),
            "act": nn.ReLU(),
            "last": nn.Linear(hidden, self.config.num_classes),
        }
        return nn.Sequential(OrderedDict(layers))

    def features(self, images: Tensor, walk: Walk) -> Features:
        stem: Any = self
        x_BDhw = stem.maxpool(stem.act1(stem.bn1(stem.conv1(images))))
        for i, block in enumerate(self._stages()):
            if i >= walk.blocks:
                break
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
        return [*self._stages(), *self.pooling_blocks()]

    def _stages(self) -> list[Any]:
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
        """Names of matrices that are not decayed: none, but the queries of attention pooling."""
        return self.pooling_tokens()

    def layer_id(self, name: str) -> int:
        """Depth of a parameter: 0 the stem, i the i-th block, then what pools by
        attention, and the head."""
        if name.startswith("layer"):
            stage, block = name.removeprefix("layer").split(".")[:2]
            return sum(self.config.depths[: int(stage) - 1]) + int(block) + 1
        last = name.startswith(("fc.", "head.", "norm."))
        return self.behind_pooling(name, self.config.depth + 1 if last else 0)


def _tokens(x: Tensor) -> TokenMap:
    h, w = x.shape[2:]
    return TokenMap(x.flatten(2).transpose(1, 2), (h, w))
