"""PatchConvNet (arXiv:2112.13692; thesis section 5.2), with the names and shapes of the authors'
`PatchConvnet`: patches made by convolutions, a column of convolutional blocks, and pooling by
attention.

Differs from theirs: grids need not be square, and a query a class has its logit by one matrix of K
rows (theirs: K layers of one row).

Shapes: B images, C channels, N patches of a grid h x w, D width, K classes.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bigvit.layers.batch_norm import BatchNorm
from bigvit.layers.norm import LayerNorm
from bigvit.layers.patch_embed import PatchEmbed
from bigvit.layers.precision import upcast
from bigvit.layers.squeeze_excite import SqueezeExcite
from bigvit.layers.stochastic_depth import Drop, add_branches
from bigvit.models.backbone import Backbone, Walk
from bigvit.models.output import Features
from bigvit.recipe import ImageSize, PatchConvNet

Grid = tuple[int, int]


class ConvolutionalStem(nn.Module):
    """3 x 3 convolutions without bias, each of which halves the grid, with GELU between them."""

    def __init__(self, model: PatchConvNet) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        chans = model.in_chans
        for made in model.filters:
            layers += [nn.GELU()] * bool(layers)
            layers.append(nn.Sequential(nn.Conv2d(chans, made, 3, 2, padding=1, bias=False)))
            chans = made
        self.proj = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> tuple[Tensor, Grid]:
        """images (B, C, H, W) -> tokens (B, N, D) row by row, and their grid (h, w)."""
        x_BDhw = self.proj(images)
        h, w = x_BDhw.shape[2:]
        return x_BDhw.flatten(2).transpose(1, 2), (h, w)


class Column(nn.Module):
    """A 1 x 1 and a depthwise 3 x 3 convolution, each with GELU, squeeze-and-excitation, and a
    1 x 1 convolution; the authors call it attention."""

    def __init__(self, dim: int, squeezed: int) -> None:
        super().__init__()
        self.qkv_pos = nn.Sequential(
            nn.Conv2d(dim, dim, kernel_size=1),
            nn.GELU(),
            nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim),
            nn.GELU(),
            SqueezeExcite(dim, squeezed),
            nn.Conv2d(dim, dim, kernel_size=1),
        )

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return _patches(self.qkv_pos(_cells(x, grid)))


class Block(nn.Module):
    """x + gamma_1 column(norm(x))."""

    def __init__(self, model: PatchConvNet) -> None:
        super().__init__()
        self.recompute = False
        dim = model.embed_dim
        self.norm1 = LayerNorm(dim) if model.norm == "layer" else BatchNorm(dim)
        self.attn = Column(dim, model.squeezed)
        self.gamma_1 = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor, grid: Grid, drop: Sequence[Drop]) -> Tensor:
        """x (B, N, D), what the branch drops -> (B, N, D)."""
        return add_branches(x, [partial(self._column, grid)], drop, self.recompute)

    def _column(self, grid: Grid, x: Tensor) -> Tensor:
        if isinstance(self.norm1, BatchNorm):
            y = _patches(self.norm1(_cells(x, grid)))
        else:
            y = self.norm1(x)
        return self.attn(y, grid) * upcast(self.gamma_1)


class PatchConvolutionalNetwork(Backbone):
    """PatchConvNet: stem, column, and a linear head on what attention pools, or on the mean."""

    def __init__(self, model: PatchConvNet, _image_size: ImageSize) -> None:
        super().__init__()
        self.config = model
        dim, linear = model.embed_dim, model.stem == "linear"
        embed = PatchEmbed(model.patch_size, model.in_chans, dim) if linear else None
        self.patch_embed = embed or ConvolutionalStem(model)
        self.blocks = nn.ModuleList(Block(model) for _ in range(model.depth))
        self.norm = LayerNorm(dim)
        self.head = self.head_on(dim)

    def features(self, images: Tensor, walk: Walk) -> Features:
        x, grid = self.patch_embed(images)
        x = walk(self.blocks, upcast(x).contiguous(), grid, grid)
        return self.normalised(x, grid, walk)

    def begin(self, name: str, value: Tensor, generator: torch.Generator) -> Tensor | None:
        """The column's factors at their value, all else as in any model."""
        own = name.startswith("blocks.") and name.endswith(".gamma_1")
        return value.fill_(self.config.layer_scale) if own else None

    def all_blocks(self) -> list[Any]:
        """The blocks, first to last."""
        return [*self.blocks, *self.pooling_blocks()]

    def no_weight_decay(self) -> set[str]:
        """Names of matrices that are not decayed: the queries, if there are some."""
        return self.pooling_tokens()

    def layer_id(self, name: str) -> int:
        """Depth of a parameter: 0 the stem, i the i-th block, then what
        pools by attention, and norm and head."""
        if name.startswith("blocks."):
            return int(name.split(".")[1]) + 1
        stem = name.startswith("patch_embed.")
        return self.behind_pooling(name, 0 if stem else self.config.depth + 1)


def _cells(x: Tensor, grid: Grid) -> Tensor:
    """(B, N, D) -> (B, D, h, w), channels last in memory."""
    return x.transpose(1, 2).unflatten(2, grid)


def _patches(x: Tensor) -> Tensor:
    """(B, D, h, w) -> (B, N, D)."""
    return x.flatten(2).transpose(1, 2)
