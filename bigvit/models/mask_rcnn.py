"""Mask R-CNN (arXiv:1703.06870) on a trunk's maps: torchvision's modules, with its names below each
part. A trunk of one stride has the neck of XCiT's and ViTDet's code before the pyramid.

Shapes: B images, D width of a map, C channels of the pyramid, K classes, R boxes; maps h x w,
finest first.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.rpn import RPNHead, concat_box_prediction_layers
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelMaxPool

from bigvit.layers.norm import LayerNorm
from bigvit.layers.precision import upcast
from bigvit.models.output import TokenMap
from bigvit.recipe.detection import BOX_CELLS, MaskRCNN


class ChannelNorm(LayerNorm):
    """LayerNorm over the channels of a map."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, D, h, w) -> the same shape, in the weights' type."""
        return super().forward(upcast(input).movedim(1, -1)).movedim(-1, 1)


class Neck(nn.Module):
    """A map of stride s -> strides s / 4, s / 2, s and 2 s. Its norm is a LayerNorm, as in ViTDet
    (arXiv:2203.16527); XCiT's is BatchNorm, by which images depend on each other."""

    def __init__(self, dim: int) -> None:
        super().__init__()

        def doubled() -> nn.Module:
            return nn.ConvTranspose2d(dim, dim, 2, stride=2)

        self.fpn1 = nn.Sequential(doubled(), ChannelNorm(dim), nn.GELU(), doubled())
        self.fpn2 = doubled()
        self.fpn4 = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> list[Tensor]:
        """(B, D, h, w) -> four maps, finest first."""
        return [self.fpn1(x), self.fpn2(x), x, self.fpn4(x)]


class Pyramid(nn.Module):
    """Blocks' tokens -> five levels of C channels, the last of which skips every second cell of the
    one before (FPN, arXiv:1612.03144)."""

    def __init__(self, config: MaskRCNN, dims: Sequence[int]) -> None:
        """Args: dims: widths of the maps, finest first; of one, the neck makes four."""
        super().__init__()
        norms = [LayerNorm(dim) for dim in dims] if config.normalised else []
        self.norms = nn.ModuleList(norms)
        self.neck = Neck(dims[0]) if len(dims) == 1 else None
        widths = list(dims) if len(dims) > 1 else [dims[0]] * 4
        self.fpn = FeaturePyramidNetwork(widths, config.channels, LastLevelMaxPool())

    def forward(self, blocks: Sequence[TokenMap]) -> list[Tensor]:
        dtype = next(self.parameters()).dtype
        maps = list[Tensor]()
        for i, (tokens, grid) in enumerate(blocks):
            x = self.norms[i](upcast(tokens)) if len(self.norms) else tokens
            maps.append(x.to(dtype).transpose(1, 2).unflatten(2, grid))
        if self.neck is not None:
            maps = self.neck(maps[0])
        # by names: stage 3 looks at those of what a module returns
        named = OrderedDict((str(i), x) for i, x in enumerate(maps))
        return list(self.fpn(named).values())


class Head(nn.Module):
    """All that is trained beside the trunk."""

    def __init__(self, config: MaskRCNN, dims: Sequence[int], classes: int) -> None:
        super().__init__()
        channels, hidden = config.channels, config.hidden_dim
        self.pyramid = Pyramid(config, dims)
        self.rpn = RPNHead(channels, len(config.ratios))
        self.box_head = TwoMLPHead(channels * BOX_CELLS**2, hidden)
        self.box_predictor = FastRCNNPredictor(hidden, classes + 1)  # 0 is none
        self.mask_head = MaskRCNNHeads(channels, [channels] * config.mask_layers, 1)
        self.mask_predictor = MaskRCNNPredictor(channels, channels, classes + 1)

    def anchored(self, levels: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Of each anchor of all levels the logit (B, A) of there being something, and how far its
        box lies from it (B, A, 4); float32 or wider."""
        logits, offsets = concat_box_prediction_layers(*self.rpn(list(levels)))
        images = len(levels[0])
        return upcast(logits.view(images, -1)), upcast(offsets.view(images, -1, 4))

    def boxes(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Features (R, C, 7, 7) -> logits (R, 1 + K) and offsets (R, 1 + K, 4); float32 or
        wider."""
        x = self.box_head(features.to(next(self.parameters()).dtype))
        logits, offsets = self.box_predictor(x)
        return upcast(logits), upcast(offsets).unflatten(1, (-1, 4))

    def masks(self, features: Tensor, classes: Tensor) -> Tensor:
        """Features (R, C, 14, 14), and the class of each, 1 the first -> logits (R, 28, 28),
        float32 or wider."""
        x = self.mask_head(features.to(next(self.parameters()).dtype))
        logits = upcast(self.mask_predictor(x))
        return logits.gather(1, classes[:, None, None, None].expand(-1, 1, *logits.shape[2:]))[:, 0]


def begin(name: str, value: Tensor, generator: torch.Generator) -> Tensor | None:
    """What a parameter of the head begins as; None for norms. Biases 0 but for the neck's; all else
    as torchvision does, and the layers of boxes as mmdetection."""
    if ".norms." in name or name.endswith(("fpn1.1.weight", "fpn1.1.bias")):
        return None
    init = nn.init
    if ".neck." in name:
        bound = 1 / math.sqrt(4 * (value.shape[1] if value.ndim > 1 else value.shape[0]))
        return value.uniform_(-bound, bound, generator=generator)
    if name.endswith("bias"):
        return value
    if "pyramid.fpn." in name:
        return init.kaiming_uniform_(value, a=1, generator=generator)
    if "box_head." in name:
        return init.xavier_uniform_(value, generator=generator)
    if "mask_" in name:
        return init.kaiming_normal_(value, 0, "fan_out", "relu", generator)
    std = 0.001 if "box_predictor.bbox_pred" in name else 0.01
    return value.normal_(std=std, generator=generator)
