"""Swin Transformer (arXiv:2103.14030) from timm's windows, with the names and shapes of timm's
`swin_*`.

Differs from timm where the others here do: stochastic depth is uniform over depth (timm: linear)
and drawn with the batch, and the residual stream is float32.

Shapes: B images, N tokens of a grid h x w, D width.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from timm.layers import PatchEmbed  # pyright: ignore[reportPrivateImportUsage]
from timm.models.swin_transformer import (
    PatchMerging,
    SwinTransformerBlock,
    window_partition,
    window_reverse,
)
from torch import Tensor, nn

from bigvit.layers.norm import LayerNorm
from bigvit.layers.precision import upcast
from bigvit.layers.stochastic_depth import Drop, add_branches
from bigvit.models.backbone import Backbone, Grid, Walk
from bigvit.models.output import Features
from bigvit.recipe import ImageSize, PaddedSwin, Swin, sides


def _norm(dim: int, **_: Any) -> LayerNorm:
    return LayerNorm(dim, eps=1e-5)


class Block(SwinTransformerBlock):
    """x + windows(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.recompute = False

    def _init_buffers(self) -> None:
        """timm makes the mask where the weights are, and fsdp2's have no memory yet."""
        self.register_buffer("attn_mask", self.get_attn_mask(), persistent=False)

    def forward(self, x: Tensor, grid: Grid, drop: Sequence[Drop]) -> Tensor:  # type: ignore[override]
        """x (B, N, D), its grid (h, w), what the two branches drop -> (B, N, D)."""
        x = add_branches(x, [partial(self._windows, grid)], drop[:1], self.recompute)
        return add_branches(x, [self._mlp], drop[1:], self.recompute)

    def _windows(self, grid: Grid, x: Tensor) -> Tensor:
        x_BhwD = self.norm1(x).unflatten(1, grid)
        return upcast(self._attn(x_BhwD).flatten(1, 2))

    def _mlp(self, x: Tensor) -> Tensor:
        return upcast(self.mlp(self.norm2(x)))


class PaddedBlock(Block):
    """The same, whose grid is padded before it is shifted (`PaddedSwin`), and may be turned."""

    def _attn(self, x: Tensor) -> Tensor:
        (h, w), window = x.shape[1:3], self.window_size
        shift: tuple[int, int] = self.shift_size
        pad = (0, 0, 0, -w % window[1], 0, -h % window[0])
        x = torch.roll(F.pad(x, pad), (-shift[0], -shift[1]), (1, 2))
        windows = window_partition(x, window).flatten(1, 2)
        seen = self.attn(windows, mask=self._mask((h, w))).unflatten(1, window)
        x = torch.roll(window_reverse(seen, window, *x.shape[1:3]), shift, (1, 2))
        return x[:, :h, :w]

    def _mask(self, grid: Grid) -> Tensor | None:
        """What tokens of windows (windows, M, M) do not see, on the grid it is built for, or on
        that turned, where windows, and tokens within them, are the same column by column."""
        mask, resolution = cast(Tensor | None, self.attn_mask), cast(Grid, self.input_resolution)
        down, across = resolution
        if mask is None or grid == resolution:
            return mask
        assert grid == (across, down), f"{grid}, and the model is for {resolution}"
        side = self.window_size[0]
        rows = mask.view(-(-down // side), -(-across // side), *[side] * 4)
        return rows.permute(1, 0, 3, 2, 5, 4).reshape(mask.shape)


class Stage(nn.Module):
    """Merges 2 x 2 tokens into one (not the first stage), then blocks."""

    def __init__(
        self, model: Swin, depth: int, heads: int, dim: int, grid: tuple[int, int], first: bool
    ) -> None:
        super().__init__()
        self.downsample = nn.Identity() if first else PatchMerging(dim // 2, norm_layer=_norm)  # type: ignore
        padded = isinstance(model, PaddedSwin)
        block = PaddedBlock if padded else Block
        self.blocks = nn.ModuleList(
            block(
                dim,
                grid,
                heads,
                window_size=model.window_size,
                shift_size=model.window_size // 2 if i % 2 else 0,
                always_partition=padded,
                mlp_ratio=model.mlp_ratio,
                norm_layer=_norm,
            )
            for i in range(depth)
        )


class SwinTransformer(Backbone):
    """Swin: patches, stages, and a linear head on the mean of the last tokens, or on what attention
    pools of them."""

    def __init__(self, model: Swin, image_size: ImageSize) -> None:
        super().__init__()
        self.config = model
        self.patch_embed = PatchEmbed(
            sides(image_size),  # type: ignore[arg-type]
            model.patch_size,
            model.in_chans,
            model.embed_dim,
            norm_layer=_norm,
            output_fmt="NHWC",
            strict_img_size=not model.turns,
        )
        stages = list(model.stages(image_size))
        self.layers = nn.ModuleList(
            Stage(model, *stage, first=i == 0) for i, stage in enumerate(stages)
        )
        dim = stages[-1][2]
        self.norm = _norm(dim)
        self.head = nn.Sequential(OrderedDict(fc=self.head_on(dim)))

    def features(self, images: Tensor, walk: Walk) -> Features:
        x_BhwD = upcast(self.patch_embed(images))
        x, grid = x_BhwD, (0, 0)
        stage: Any
        for stage in self.layers:
            x_BhwD = upcast(stage.downsample(x_BhwD))
            grid = x_BhwD.shape[1], x_BhwD.shape[2]
            x = walk(stage.blocks, x_BhwD.flatten(1, 2), grid, grid)
            x_BhwD = x.unflatten(1, grid)
        return self.normalised(x_BhwD.flatten(1, 2), grid, walk)

    def all_blocks(self) -> list[Any]:
        """The blocks, first to last."""
        stages = self.layers.children()
        own = [b for stage in stages for b in stage.get_submodule("blocks").children()]
        return [*own, *self.pooling_blocks()]

    def no_weight_decay(self) -> set[str]:
        """Names of matrices that are not decayed: the tables of relative positions, and the queries
        of attention pooling."""
        tables = "relative_position_bias_table"
        own = {name for name, _ in self.named_parameters() if name.endswith(tables)}
        return own | self.pooling_tokens()

    def layer_id(self, name: str) -> int:
        """Depth of a parameter: 0 the embedding, i the i-th block, then what
        pools by attention, and norm and head."""
        layer = staged_layer_id(name, "layers.", self.config.depths)
        return self.behind_pooling(name, layer)


def staged_layer_id(name: str, prefix: str, depths: Sequence[int]) -> int:
    """Depth of a parameter named PREFIX STAGE.blocks.BLOCK...; what stands before a stage's blocks
    goes with the first of them, or with the embedding."""
    if not name.startswith(prefix):
        return 0 if name.startswith("patch_embed.") else sum(depths) + 1
    stage, rest = name.removeprefix(prefix).split(".", 1)
    before = sum(depths[: int(stage)])
    if rest.startswith("blocks."):
        return before + int(rest.split(".")[1]) + 1
    return before + 1 if before else 0
