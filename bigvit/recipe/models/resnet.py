"""ResNet of bottleneck blocks. No torch here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bigvit.recipe import bounds
from bigvit.recipe.depth import ImageSize, StochasticDepth, sides
from bigvit.recipe.models.description import Grid, unknown
from bigvit.recipe.models.ops import Op, batch_norm, conv, linear, repeat
from bigvit.recipe.models.pooling import AttentionPooling, AveragePooling, refuse_attention
from bigvit.recipe.models.stages import Staged

__all__ = ["ResNet"]


@dataclass(frozen=True)
class ResNet(Staged):
    """ResNet (arXiv:1512.03385) of bottleneck blocks, the stride in their 3 x 3 convolution."""

    depths: bounds.Depth[tuple[int, ...]]  # blocks of each stage
    pooling: AveragePooling | AttentionPooling  # how the last cells become what is classified
    # None: the head is one linear layer; else two with BatchNorm and ReLU between (thesis 2.4.6)
    head_hidden_dim: bounds.Width[int | None]
    # the trunk's BatchNorm normalises in training, too, by what was gathered before, and gathers
    # nothing (mmdetection's norm_eval; detectron2's FrozenBN, which freezes its weights besides)
    frozen_statistics: bool
    in_chans: bounds.Channels[int]  # channels of an image
    num_classes: bounds.Classes[int]  # classes of the head

    has_attention = False
    turns = True
    beginning = "conv1.", "bn1.", "layer1."

    @property
    def drop_path(self) -> StochasticDepth:
        """None."""
        return StochasticDepth(rate=0.0, group=1)

    @property
    def branches(self) -> int:
        return self.depth

    @property
    def summary(self) -> str:
        return "-".join(map(str, self.depths))

    def stages(self, image_size: ImageSize) -> Iterator[tuple[int, int, int, Grid]]:
        h, w = (-(-side // 4) for side in sides(image_size))
        for i, depth in enumerate(self.depths):
            yield depth, 0, 256 * 2**i, (h, w)
            h, w = -(-h // 2), -(-w // 2)

    def ops(self, image_size: ImageSize) -> Iterator[Op]:
        height, width = sides(image_size)
        halved, below, before, first = -(-height // 2) * -(-width // 2), 64, 0, 0
        yield conv("conv1", halved, self.in_chans, 64, 7, height * width * self.in_chans)
        yield batch_norm("bn1", halved, 64)
        yield Op("act1", "activation", 0, 0, halved * 64)
        for i, (depth, _, d, (h, w)) in enumerate(self.stages(image_size)):
            block, cells = f"layer{i + 1}.*", h * w
            if not i:
                before = cells
                yield Op("maxpool", "activation", 0, 0, 0, wide=2 * cells * 64)  # indices, 8 bytes
            other = [
                *_block(block, before, cells, below, d),
                conv(f"{block}.downsample.0", cells, below, d, 1, 0),
                batch_norm(f"{block}.downsample.1", cells, d),
            ]
            yield from repeat(1, other, first)
            yield from repeat(depth - 1, _block(block, cells, cells, d, d), first + 1)
            below, before, first = d, cells, first + depth
        act = Op(f"layer{len(self.depths)}.*.act3", "activation", 0, 0, before * below)
        yield from repeat(1, [act], first - 1)  # that of others is what the next block reads
        if isinstance(self.pooling, AttentionPooling):
            classes = self.num_classes
            yield from self.pooling.ops(self.depth, before, below, classes, "fc", normalised=False)
        elif hidden := self.head_hidden_dim:
            yield linear("fc.hidden", 1, below, hidden)
            yield batch_norm("fc.norm", 1, hidden)
            yield Op("fc.act", "activation", 0, 0, hidden)
            # the activation's result is kept once, for both
            yield linear("fc.last", 1, hidden, self.num_classes, keeps=False)
        else:
            yield linear("fc", 1, below, self.num_classes)

    def gathers(self, module: str) -> bool:
        return not self.frozen_statistics or module.startswith("fc.")

    def check(self, image_size: ImageSize, starts_from: str | None) -> None:
        super().check(image_size, starts_from)
        fine = starts_from is not None or not self.frozen_statistics
        allowed = "False from scratch (starts_from), where nothing was gathered"
        bounds.allow("model.frozen_statistics", self.frozen_statistics, fine, allowed)
        bounds.allow("model.depths", self.depths, self.depth >= 2, "two blocks or more in all")
        if isinstance(self.pooling, AttentionPooling):
            self.pooling.check(256 * 2 ** (len(self.depths) - 1))
            linear_head = self.head_hidden_dim is None
            way_out = "none where model.pooling is by attention"
            bounds.allow("model.head_hidden_dim", self.head_hidden_dim, linear_head, way_out)

    def timm(self, image_size: ImageSize) -> dict[str, Any]:
        refuse_attention(self.pooling, "ResNet")
        if self.head_hidden_dim is not None:
            raise unknown(
                "ResNet whose head has two layers (model.head_hidden_dim)",
                "load the checkpoint by bigvit.load_trained, or train with a linear head: "
                "--model.head-hidden-dim None",
            )
        if len(self.depths) != 4:
            return super().timm(image_size)
        return {
            "architecture": "resnet50",
            "num_features": 2048,
            "global_pool": "avg",
            "model_args": {"layers": list(self.depths), "in_chans": self.in_chans},
            "pretrained_cfg": {
                "fixed_input_size": False,
                "first_conv": "conv1",
                "classifier": "fc",
            },
        }


def _block(block: str, before: int, cells: int, below: int, d: int) -> Iterator[Op]:
    """The three convolutions of a bottleneck, whose second makes `cells` of the cells before."""
    inner = d // 4
    yield Op(f"{block}.conv1", "stream", 0, 0, before * below)
    yield conv(f"{block}.conv1", before, below, inner, 1, 0)
    yield batch_norm(f"{block}.bn1", before, inner)
    yield conv(f"{block}.conv2", cells, inner, inner, 3, before * inner)
    yield batch_norm(f"{block}.bn2", cells, inner)
    yield conv(f"{block}.conv3", cells, inner, d, 1, cells * inner)
    yield batch_norm(f"{block}.bn3", cells, d)
