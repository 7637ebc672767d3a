"""CaiT (arXiv:2103.17239; thesis sections 3.5 to 3.7), with the names and shapes of timm's
`cait_*`: self-attention between patches, then class attention, in which the class token alone is
updated. And what the thesis compares it with: other residual branches, other poolings.

Shapes: B images, N patches, D width, K classes; C class tokens, one, or two where a
distillation token stands behind it; T tokens, N or, where class tokens were inserted, N + C.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bigvit.layers.attention import Attention
from bigvit.layers.class_attention import ClassBlock
from bigvit.layers.mlp import Mlp
from bigvit.layers.norm import LayerNorm
from bigvit.layers.positions import on_grid
from bigvit.layers.precision import upcast
from bigvit.layers.residual import factors, initial_factors, scaled
from bigvit.layers.stochastic_depth import Drop, add_branches
from bigvit.layers.talking_heads import TalkingHeads
from bigvit.models.backbone import Walk
from bigvit.models.fixup import fixup, t_fixup
from bigvit.models.output import Features
from bigvit.models.vit import ClassTokenTransformer
from bigvit.recipe import (
    AveragePooling,
    CaiT,
    ClassAttention,
    ClassToken,
    FixedLayerScale,
    Fixup,
    ImageSize,
    TFixup,
)


class Block(nn.Module):
    """x + gamma_1 attention(norm(x)), then x + gamma_2 mlp(norm(x))."""

    def __init__(self, model: CaiT) -> None:
        super().__init__()
        self.recompute = False
        dim = model.embed_dim
        self.norm1 = LayerNorm(dim)
        self.attn = (TalkingHeads if model.talking_heads else Attention)(dim, model.num_heads)
        self.norm2 = LayerNorm(dim)
        self.mlp = Mlp(dim, model.hidden_dim)
        self.gamma_1 = factors(model.residual, dim)
        self.gamma_2 = factors(model.residual, dim)

    def forward(self, x: Tensor, drop: Sequence[Drop]) -> Tensor:
        """x (B, T, D), what the two branches drop -> (B, T, D)."""
        x = add_branches(x, [self._attention], drop[:1], self.recompute)
        return add_branches(x, [self._mlp], drop[1:], self.recompute)

    def _attention(self, x: Tensor) -> Tensor:
        return scaled(self.attn(self.norm1(x)), self.gamma_1)

    def _mlp(self, x: Tensor) -> Tensor:
        return scaled(self.mlp(self.norm2(x)), self.gamma_2)


class ClassAttentionTransformer(ClassTokenTransformer):
    """CaiT, or one of its ablations."""

    def __init__(self, model: CaiT, image_size: ImageSize) -> None:
        super().__init__(model, image_size, (Block(model) for _ in range(model.depth)))
        self.residual, self.pooling = model.residual, model.pooling
        match model.pooling:
            case ClassAttention(depth=depth, keys=keys):
                own, queries = keys == "class and patches", 2 if model.distillation else 1
                size = model.embed_dim, model.num_heads, model.hidden_dim, model.residual
                each = (ClassBlock(*size, own, queries) for _ in range(depth))
                self.blocks_token_only = nn.ModuleList(each)
            case ClassToken():
                pass
            case AveragePooling():
                del self.cls_token

    def features(self, images: Tensor, walk: Walk) -> Features:
        x, grid = self.patch_embed(images)
        x = upcast(walk.mixed(x)) + on_grid(self.pos_embed, self.grid, grid)
        alone = self.pooling.layer if isinstance(self.pooling, ClassToken) else len(self.blocks)
        x = walk(list(self.blocks)[:alone], x, grid)
        if isinstance(self.pooling, ClassToken):
            x = torch.cat([self.class_tokens(len(x)), x], dim=1)
            x = walk(list(self.blocks)[alone:], x, grid)
        return self.normalised(x, grid, walk)

    def pool(self, features: Features) -> Sequence[Tensor]:
        """The vectors (B, D) that are classified."""
        if not isinstance(self.pooling, ClassAttention):
            return super().pool(features)
        cls = self.class_tokens(len(features.stream))
        for block in self.blocks_token_only:
            cls = block(cls, features.stream)
        return self.norm(cls).unbind(dim=1)

    def block_classes(self) -> list[str]:
        """Names of the classes of all that a residual stream goes through, each on one device."""
        return [*super().block_classes(), ClassBlock.__name__]

    def begin(self, name: str, value: Tensor, generator: torch.Generator) -> Tensor | None:
        """By what multiplies the branches: their factors, and Fixup's and T-Fixup's weights."""
        if ".gamma_" in name:
            return initial_factors(self.residual, value, generator)
        blocks = len(self.all_blocks())
        match self.residual:
            case Fixup():
                return fixup(name, value, generator, 2 * blocks)
            case TFixup():
                return t_fixup(name, value, generator, blocks)
            case _:
                return None

    def takes(self, name: str) -> bool:
        """Whether a parameter starts from given weights."""
        return not isinstance(self.residual, FixedLayerScale) or ".gamma_" in name

    def all_blocks(self) -> list[Any]:
        """Of both stages, in order."""
        second = self.blocks_token_only if isinstance(self.pooling, ClassAttention) else []
        return [*self.blocks, *second]

    def no_weight_decay(self) -> set[str]:
        """Names of matrices that are not decayed: class token, if any, and positions."""
        return super().no_weight_decay() & {name for name, _ in self.named_parameters()}

    def layer_id(self, name: str) -> int:
        """Depth of a parameter: 0 the embedding, i the i-th block of both stages, then the head."""
        if name.startswith("blocks_token_only."):
            return len(self.blocks) + int(name.split(".")[1]) + 1
        return super().layer_id(name)
