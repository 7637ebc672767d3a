"""DeiT (arXiv:2012.12877; thesis sections 3.2, 3.3), with the names and shapes of timm's `deit_*`
and `deit_*_distilled_*`: a class token, perhaps a distillation token behind it with a head of its
own, and positions on all tokens.

Shapes: B images, N patches, D width, K classes; T = N + 1 tokens, or N + 2 with the distillation
token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bigvit.layers.attention import Attention
from bigvit.layers.mlp import Mlp
from bigvit.layers.norm import LayerNorm
from bigvit.layers.precision import upcast
from bigvit.layers.stochastic_depth import Drop, add_branches
from bigvit.models.backbone import Walk
from bigvit.models.output import Features
from bigvit.models.vit import ClassTokenTransformer
from bigvit.recipe import DeiT, ImageSize


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, model: DeiT) -> None:
        super().__init__()
        self.recompute = False
        dim = model.embed_dim
        self.norm1 = LayerNorm(dim)
        self.attn = Attention(dim, model.num_heads)
        self.norm2 = LayerNorm(dim)
        self.mlp = Mlp(dim, model.hidden_dim)

    def forward(self, x: Tensor, drop: Sequence[Drop]) -> Tensor:
        """x (B, T, D), what the two branches drop -> (B, T, D)."""
        x = add_branches(x, [self._attention], drop[:1], self.recompute)
        return add_branches(x, [self._mlp], drop[1:], self.recompute)

    def _attention(self, x: Tensor) -> Tensor:
        return upcast(self.attn(self.norm1(x)))

    def _mlp(self, x: Tensor) -> Tensor:
        return upcast(self.mlp(self.norm2(x)))


class DistilledTransformer(ClassTokenTransformer):
    """DeiT, with its distillation token or without."""

    def __init__(self, model: DeiT, image_size: ImageSize) -> None:
        super().__init__(model, image_size, (Block(model) for _ in range(model.depth)))
        h, w = model.grid(image_size)
        others = 1 if model.distillation is None else 2
        self.pos_embed = nn.Parameter(torch.empty(1, h * w + others, model.embed_dim))

    def features(self, images: Tensor, walk: Walk) -> Features:
        x_BND, grid = self.patch_embed(images)
        x = torch.cat([self.class_tokens(len(x_BND)), upcast(x_BND)], dim=1)
        return self.normalised(walk(self.blocks, x + self.pos_embed, grid), grid, walk)
