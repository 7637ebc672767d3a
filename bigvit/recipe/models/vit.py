"""DeiT III's Vision Transformer, and its sizes. No torch here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bigvit.recipe import bounds
from bigvit.recipe.depth import ImageSize, StochasticDepth
from bigvit.recipe.models.description import unknown
from bigvit.recipe.models.ops import (
    Op,
    attention_branch,
    embedding,
    in_branch,
    mlp_branch,
    repeat,
    scale,
)
from bigvit.recipe.models.pooling import AttentionPooling, ClassToken, refuse_attention
from bigvit.recipe.models.uniform import OfPatches, TokenLabeled

__all__ = ["VIT_SIZES", "ViT", "vit"]

# timm's entry point by width; every value of the model is given beside it
ARCHITECTURES = {
    384: "deit3_small_patch16_224",
    512: "deit3_medium_patch16_224",
    768: "deit3_base_patch16_224",
    1024: "deit3_large_patch16_224",
    1280: "deit3_huge_patch14_224",
}


@dataclass(frozen=True)
class ViT(TokenLabeled, OfPatches):
    """DeiT III's Vision Transformer (arXiv:2204.07118): LayerScale, uniform stochastic depth, and
    positions on the patches alone. Its class token goes all the way with the patches, or there is
    none, and attention pools them in the end."""

    patch_size: bounds.PatchSize[int]  # side of a square patch, pixels
    embed_dim: bounds.Width[int]  # width D of a token
    depth: bounds.Depth[int]  # number of blocks, each an attention and an MLP branch
    num_heads: bounds.Heads[int]  # attention heads; D must be a multiple
    mlp_ratio: bounds.MlpRatio[float]  # hidden width of the MLP, in units of D
    layer_scale: bounds.Factor[float]  # initial value of LayerScale's diagonal
    pooling: ClassToken | AttentionPooling  # how the patches become what is classified
    dense_head: bool  # whether a head on every patch predicts with the class token's
    drop_path: StochasticDepth
    in_chans: bounds.Channels[int]  # channels of an image
    num_classes: bounds.Classes[int]  # classes of a head

    def ops(self, image_size: ImageSize) -> Iterator[Op]:
        d, (h, w) = self.embed_dim, self.grid(image_size)
        pooling, patches = self.pooling, h * w
        tokens = patches + isinstance(pooling, ClassToken)
        yield from self.patch_ops(image_size)
        if isinstance(pooling, ClassToken):
            yield embedding("cls_token", d)
        attn = attention_branch("blocks.*.norm1", "blocks.*.attn", tokens, d, self.num_heads)
        mlp = mlp_branch("blocks.*.norm2", "blocks.*.mlp", tokens, d, self.hidden_dim)
        yield from repeat(
            self.depth,
            [
                *in_branch(0, attn, [scale("blocks.*.ls1", d, tokens * d)]),
                *in_branch(1, mlp, [scale("blocks.*.ls2", d, tokens * d)]),
            ],
        )
        if isinstance(pooling, ClassToken):
            yield from self.head_ops(tokens)
        else:
            yield from pooling.ops(self.depth, patches, d, self.num_classes, "head")
        yield from self.dense_ops(image_size)

    def check(self, image_size: ImageSize, starts_from: str | None) -> None:
        super().check(image_size, starts_from)
        if isinstance(self.pooling, ClassToken):
            layer = self.pooling.layer
            bounds.allow("model.pooling.layer", layer, layer == 0, "0; CaiT's may be later")
        else:
            self.pooling.check(self.embed_dim)

    def timm(self, image_size: ImageSize) -> dict[str, Any]:
        refuse_attention(self.pooling, "ViT")
        if self.dense_head:
            raise unknown("ViT but without a head on patches")
        architecture = ARCHITECTURES.get(self.embed_dim, "deit3_small_patch16_224")
        return self.timm_as(architecture, image_size, init_values=self.layer_scale)


VIT_SIZES = {
    # name: patch_size, embed_dim, depth, num_heads (thesis tables 6.7, 6.14, section 6.3.2.3;
    # m16 and g14: the authors' repository, models_v2.py)
    "t16": (16, 192, 12, 3),
    "s16": (16, 384, 12, 6),
    "m16": (16, 512, 12, 8),
    "b16": (16, 768, 12, 12),
    "l16": (16, 1024, 24, 16),
    "h14": (14, 1280, 32, 16),
    "h52_14": (14, 1280, 52, 16),
    "g14": (14, 1408, 40, 16),
}
"""The sizes of DeiT III and its repository."""


def vit(
    size: str, *, layer_scale: float, drop_path: StochasticDepth, num_classes: int, in_chans: int
) -> ViT:
    """A ViT of one of `VIT_SIZES`, its MLPs four times as wide as its tokens, and no head on its
    patches."""
    patch_size, embed_dim, depth, num_heads = VIT_SIZES[size]
    return ViT(
        patch_size=patch_size,
        embed_dim=embed_dim,
        depth=depth,
        num_heads=num_heads,
        mlp_ratio=4.0,
        layer_scale=layer_scale,
        pooling=ClassToken(layer=0),
        dense_head=False,
        drop_path=drop_path,
        in_chans=in_chans,
        num_classes=num_classes,
    )
