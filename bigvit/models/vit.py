"""DeiT III's Vision Transformer (arXiv:2204.07118), with the names and shapes of timm's `deit3_*`.

Differs from timm where the authors differ: LayerScale starts at the recipe's value (1e-4, timm:
1e-6), and stochastic depth is uniform over depth (timm: linear).

The residual stream x is float32 in whatever type the weights are; a branch reads it through a
LayerNorm that returns the weights' type. Blocks change the x that they are given.

Shapes: B images, N patches, D width, K classes; T = N + 1 tokens, the class token first.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bigvit.layers.attention import Attention
from bigvit.layers.layer_scale import LayerScale
from bigvit.layers.mlp import Mlp
from bigvit.layers.norm import LayerNorm
from bigvit.layers.patch_embed import PatchEmbed
from bigvit.layers.positions import on_grid
from bigvit.layers.precision import upcast
from bigvit.layers.stochastic_depth import Drop, add_branches
from bigvit.models.backbone import Backbone, Walk
from bigvit.models.output import Features
from bigvit.recipe import CaiT, DeiT, ImageSize, ParallelViT, ViT
from bigvit.recipe.models.uniform import TokenLabeled


class Block(nn.Module):
    """x + gamma_1 attention(norm(x)), then x + gamma_2 mlp(norm(x))."""

    def __init__(self, model: ViT) -> None:
        super().__init__()
        self.recompute = False
        dim = model.embed_dim
        self.norm1 = LayerNorm(dim)
        self.attn = Attention(dim, model.num_heads)
        self.ls1 = LayerScale(dim, model.layer_scale)
        self.norm2 = LayerNorm(dim)
        self.mlp = Mlp(dim, model.hidden_dim)
        self.ls2 = LayerScale(dim, model.layer_scale)

    def forward(self, x: Tensor, drop: Sequence[Drop]) -> Tensor:
        """x (B, T, D), what the two branches drop -> (B, T, D)."""
        x = add_branches(x, [self._attention], drop[:1], self.recompute)
        return add_branches(x, [self._mlp], drop[1:], self.recompute)

    def _attention(self, x: Tensor) -> Tensor:
        return self.ls1(self.attn(self.norm1(x)))

    def _mlp(self, x: Tensor) -> Tensor:
        return self.ls2(self.mlp(self.norm2(x)))


class ClassTokenTransformer(Backbone):
    """What goes around the blocks: patches with positions, a class token without one (unless
    attention pools the patches in the end), and a linear head on it; where the model is distilled
    by a token, that and its head, too; and where there is a head on patches, that."""

    def __init__(
        self,
        model: ViT | ParallelViT | CaiT | DeiT,
        image_size: ImageSize,
        blocks: Iterable[nn.Module],
    ) -> None:
        super().__init__()
        self.config = model
        h, w = self.grid = model.grid(image_size)
        dim = model.embed_dim
        if not self.attends:
            self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.empty(1, h * w, dim))
        self.patch_embed = PatchEmbed(model.patch_size, model.in_chans, dim)
        self.blocks = nn.ModuleList(blocks)
        self.norm = LayerNorm(dim)
        self.head = self.head_on(dim)
        if model.fusion:
            self.dist_token = nn.Parameter(torch.empty(1, 1, dim))
            self.head_dist = nn.Linear(dim, model.num_classes)
        if isinstance(model, TokenLabeled) and model.dense_head:
            self.aux_head = nn.Linear(dim, model.num_classes)

    def features(self, images: Tensor, walk: Walk) -> Features:
        x_BND, grid = self.patch_embed(images)
        x = upcast(walk.mixed(x_BND)) + on_grid(self.pos_embed, self.grid, grid)
        if not self.attends:
            x = torch.cat([self.class_tokens(len(x)), x], dim=1)
        return self.normalised(walk(self.blocks, x, grid), grid, walk)

    def class_tokens(self, count: int) -> Tensor:
        """The class token of so many images, and the distillation token behind it, if any:
        (B, 1, D) or (B, 2, D)."""
        tokens = [self.cls_token, *([self.dist_token] if self.config.fusion else [])]
        return torch.cat([upcast(token) for token in tokens], dim=1).expand(count, -1, -1)

    def all_blocks(self) -> list[Any]:
        """The blocks, first to last."""
        return [*self.blocks, *self.pooling_blocks()]

    def no_weight_decay(self) -> set[str]:
        """Names of matrices that are not decayed: class token and positions, and the distillation
        token, unless it is to be."""
        token = getattr(self.config, "distillation", None)
        return {"cls_token", "pos_embed", *(["dist_token"] if token and not token.decayed else [])}

    def layer_id(self, name: str) -> int:
        """Depth of a parameter: 0 the embedding, i the i-th block, then norm and head."""
        if name.startswith("blocks."):
            return int(name.split(".")[1]) + 1
        if name.startswith("blocks_token_only.") or self.attends and name == "cls_token":
            return self.config.depth + 1
        embedding = name.startswith(("cls_token", "dist_token", "pos_embed", "patch_embed."))
        return 0 if embedding else len(self.all_blocks()) + 1


class VisionTransformer(ClassTokenTransformer):
    """DeiT III's ViT."""

    def __init__(self, model: ViT, image_size: ImageSize) -> None:
        super().__init__(model, image_size, (Block(model) for _ in range(model.depth)))
