"""LV-ViT (arXiv:2104.10858), with the names and shapes of its authors' `LV_ViT`: patches made by
several convolutions, positions on all tokens, residual branches divided by a number, and a second
head, on every patch.

Shapes: B images, C channels, N patches, D width, K classes; T = N + 1 tokens, the class token
first.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bigvit.layers.batch_norm import BatchNorm
from bigvit.layers.norm import LayerNorm
from bigvit.layers.plain_block import PlainBlock
from bigvit.layers.positions import on_grid
from bigvit.layers.precision import upcast
from bigvit.models.backbone import Backbone, Walk
from bigvit.models.output import Features
from bigvit.recipe import ImageSize, LVViT

EPS = 1e-5


class ConvolutionalPatchEmbed(nn.Module):
    """Convolutions, each but the last with BatchNorm and ReLU behind it (supplement, table 3)."""

    def __init__(self, model: LVViT) -> None:
        super().__init__()
        self.before = len(model.kernels) - 1
        chans = model.in_chans
        for i, (kernel, stride) in enumerate(zip(model.kernels, model.strides, strict=True), 1):
            last = i > self.before
            made, padding = model.embed_dim if last else model.filters, (kernel - stride + 1) // 2
            conv = nn.Conv2d(chans, made, kernel, stride, padding, bias=last)
            self.add_module("proj" if last else f"conv{i}", conv)
            if not last:
                self.add_module(f"bn{i}", BatchNorm(made))
            chans = made

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """images (B, C, H, W) -> tokens (B, N, D) row by row, and their grid (h, w)."""
        x = images
        for i in range(1, self.before + 1):
            conv, norm = self.get_submodule(f"conv{i}"), self.get_submodule(f"bn{i}")
            x = F.relu(norm(conv(x)))
        x_BDhw = self.get_submodule("proj")(x)
        h, w = x_BDhw.shape[2:]
        return x_BDhw.flatten(2).transpose(1, 2), (h, w)


class Block(PlainBlock):
    """x + attention(norm(x)) / divisor, then x + mlp(norm(x)) / divisor (table 4)."""

    def __init__(self, model: LVViT) -> None:
        super().__init__(model.embed_dim, model.num_heads, model.hidden_dim, EPS, qkv_bias=False)
        self.divisor = model.divisor

    def _attention(self, x: Tensor) -> Tensor:
        return super()._attention(x) / self.divisor

    def _mlp(self, x: Tensor) -> Tensor:
        return super()._mlp(x) / self.divisor


class LabeledVisionTransformer(Backbone):
    """LV-ViT, with its head on patches or without."""

    def __init__(self, model: LVViT, image_size: ImageSize) -> None:
        super().__init__()
        self.config = model
        (h, w), dim = model.grid(image_size), model.embed_dim
        self.grid = h, w
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.empty(1, h * w + 1, dim))
        self.patch_embed = ConvolutionalPatchEmbed(model)
        self.blocks = nn.ModuleList(Block(model) for _ in range(model.depth))
        self.norm = LayerNorm(dim, EPS)
        self.head = nn.Linear(dim, model.num_classes)
        if model.dense_head:
            self.aux_head = nn.Linear(dim, model.num_classes)

    def features(self, images: Tensor, walk: Walk) -> Features:
        x_BND, grid = self.patch_embed(images)
        cls = upcast(self.cls_token).expand(len(x_BND), -1, -1)
        x = torch.cat([cls, upcast(walk.mixed(x_BND))], dim=1)
        x = x + on_grid(self.pos_embed, self.grid, grid)
        return self.normalised(walk(self.blocks, x, grid), grid, walk)

    def all_blocks(self) -> list[Any]:
        """The blocks, first to last."""
        return list(self.blocks)

    def no_weight_decay(self) -> set[str]:
        """Names of matrices that are not decayed: class token and positions."""
        return {"cls_token", "pos_embed"}

    def layer_id(self, name: str) -> int:
        """Depth of a parameter: 0 the embedding, i the i-th block, depth + 1 norm and heads."""
        if name.startswith("blocks."):
            return int(name.split(".")[1]) + 1
        embedding = name.startswith(("cls_token", "pos_embed", "patch_embed."))
        return 0 if embedding else self.config.depth + 1
