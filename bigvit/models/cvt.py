"""CvT (arXiv:2103.15808), with the names and shapes of the authors' `cvt-13`.

Differs from theirs: stochastic depth is uniform over depth (theirs: linear in each stage). As in
their code, attention is scaled by the stage's width, not by a head's.

Shapes: B images, N tokens of a grid h x w, D width; T tokens: N, after a class token if there is
one.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bigvit.layers.batch_norm import BatchNorm
from bigvit.layers.mlp import Mlp
from bigvit.layers.norm import LayerNorm
from bigvit.layers.precision import upcast
from bigvit.layers.stochastic_depth import Drop, add_branches
from bigvit.models.backbone import Backbone, Walk
from bigvit.models.output import Features
from bigvit.models.swin import staged_layer_id
from bigvit.recipe import CvT, ImageSize
from bigvit.recipe.models.t2t_vit import SPLITS

EPS = 1e-5
Grid = tuple[int, int]


class ConvEmbed(nn.Module):
    """An overlapping convolution that makes tokens."""

    def __init__(self, in_chans: int, dim: int, kernel: int, stride: int, padding: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_chans, dim, kernel, stride, padding)
        self.norm = LayerNorm(dim, EPS)

    def forward(self, maps: Tensor) -> tuple[Tensor, Grid]:
        """(B, C, H, W) in the weights' type -> (B, N, D) float32 or wider, and their grid."""
        x_BDhw = self.proj(maps)
        h, w = x_BDhw.shape[2:]
        return upcast(self.norm(upcast(x_BDhw.flatten(2).transpose(1, 2)))), (h, w)


class ConvProjection(nn.Module):
    """A depthwise convolution of the grid; the class token passes by."""

    def __init__(self, dim: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, stride, padding=1, groups=dim, bias=False)
        self.bn = BatchNorm(dim)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x (B, T, D) -> (B, T', D)."""
        first = x.shape[1] - grid[0] * grid[1]
        x_BDhw = x[:, first:].transpose(1, 2).unflatten(2, grid)
        convolved = self.bn(self.conv(x_BDhw)).flatten(2).transpose(1, 2)
        return torch.cat([x[:, :first], convolved], dim=1)


class Attention(nn.Module):
    """Attention whose queries, keys and values are convolutions; keys and values at stride 2."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.conv_proj_q = ConvProjection(dim, 1)
        self.conv_proj_k = ConvProjection(dim, 2)
        self.conv_proj_v = ConvProjection(dim, 2)
        self.proj_q = nn.Linear(dim, dim)
        self.proj_k = nn.Linear(dim, dim)
        self.proj_v = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x (B, T, D) -> (B, T, D)."""
        q_BHTd = self._heads(self.proj_q(self.conv_proj_q(x, grid)))
        k_BHTd = self._heads(self.proj_k(self.conv_proj_k(x, grid)))
        v_BHTd = self._heads(self.proj_v(self.conv_proj_v(x, grid)))
        scale = x.shape[2] ** -0.5
        out_BHTd = F.scaled_dot_product_attention(q_BHTd, k_BHTd, v_BHTd, scale=scale)
        return self.proj(out_BHTd.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.num_heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, dim: int, num_heads: int, hidden_dim: int) -> None:
        super().__init__()
        self.recompute = False
        self.norm1 = LayerNorm(dim, EPS)
        self.attn = Attention(dim, num_heads)
        self.norm2 = LayerNorm(dim, EPS)
        self.mlp = Mlp(dim, hidden_dim)

    def forward(self, x: Tensor, grid: Grid, drop: Sequence[Drop]) -> Tensor:
        """x (B, T, D), what the two branches drop -> (B, T, D)."""
        x = add_branches(x, [partial(self._attention, grid)], drop[:1], self.recompute)
        return add_branches(x, [self._mlp], drop[1:], self.recompute)

    def _attention(self, grid: Grid, x: Tensor) -> Tensor:
        return upcast(self.attn(self.norm1(x), grid))

    def _mlp(self, x: Tensor) -> Tensor:
        return upcast(self.mlp(self.norm2(x)))


class Stage(nn.Module):
    """Tokens from the grid below, in the last stage with a class token, and blocks."""

    def __init__(self, patch_embed: ConvEmbed, blocks: Iterable[Block], last: bool) -> None:
        super().__init__()
        self.patch_embed = patch_embed
        dim = patch_embed.proj.out_channels
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim)) if last else None
        self.blocks = nn.ModuleList(blocks)

    def forward(self, maps_BChw: Tensor) -> tuple[Tensor, Grid]:
        """(B, C, h, w) -> (B, T, D) float32 or wider, before its blocks, and the patches' grid."""
        x, grid = self.patch_embed(maps_BChw)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.to(x.dtype).expand(len(x), -1, -1), x], dim=1)
        return x, grid


class ConvolutionalVisionTransformer(Backbone):
    """CvT: stages, and a linear head on the class token."""

    def __init__(self, model: CvT, image_size: ImageSize) -> None:
        super().__init__()
        self.config = model
        below = model.in_chans
        for i, (depth, heads, dim, _) in enumerate(model.stages(image_size)):
            embed = ConvEmbed(below, dim, *SPLITS[min(i, 1)])
            blocks = (Block(dim, heads, int(dim * model.mlp_ratio)) for _ in range(depth))
            self.add_module(f"stage{i}", Stage(embed, blocks, i == len(model.depths) - 1))
            below = dim
        self.norm = LayerNorm(below, EPS)
        self.head = nn.Linear(below, model.num_classes)

    def features(self, images: Tensor, walk: Walk) -> Features:
        x_BDhw, x, grid = images, images, (0, 0)
        for stage in self._stages():
            x, grid = stage(x_BDhw)
            x = walk(stage.blocks, x, grid, grid)
            tokens = x[:, x.shape[1] - grid[0] * grid[1] :]
            x_BDhw = tokens.transpose(1, 2).unflatten(2, grid).to(images.dtype)
        return self.normalised(x, grid, walk)

    def _stages(self) -> list[Any]:
        return [self.get_submodule(f"stage{i}") for i in range(len(self.config.depths))]

    def all_blocks(self) -> list[Any]:
        """The blocks, first to last."""
        return [block for stage in self._stages() for block in stage.blocks]

    def no_weight_decay(self) -> set[str]:
        """Names of matrices that are not decayed: the class token."""
        return {f"stage{len(self.config.depths) - 1}.cls_token"}

    def layer_id(self, name: str) -> int:
        """Depth of a parameter: 0 the embedding, i the i-th block, depth + 1 norm and head."""
        return staged_layer_id(name, "stage", self.config.depths)
