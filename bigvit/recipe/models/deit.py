"""DeiT, the plain Vision Transformer with or without a distillation token, and its sizes. No torch
here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bigvit.recipe import bounds
from bigvit.recipe.depth import ImageSize, LinearStochasticDepth
from bigvit.recipe.models.distillation import DistillationToken, Fusion
from bigvit.recipe.models.ops import (
    Op,
    attention_branch,
    embedding,
    in_branch,
    linear,
    mlp_branch,
    repeat,
)
from bigvit.recipe.models.uniform import OfPatches

__all__ = ["DEIT_SIZES", "DeiT", "deit"]

# timm's entry points by width; every value of the model is given beside them
ARCHITECTURES = {192: "deit_tiny", 384: "deit_small", 768: "deit_base"}


@dataclass(frozen=True)
class DeiT(OfPatches):
    """DeiT's Vision Transformer (arXiv:2012.12877; thesis sections 3.2, 3.3): a class token,
    positions on all tokens, no LayerScale, and stochastic depth that grows with depth."""

    patch_size: bounds.PatchSize[int]  # side of a square patch, pixels
    embed_dim: bounds.Width[int]  # width D of a token
    depth: bounds.Depth[int]  # number of blocks, each an attention and an MLP branch
    num_heads: bounds.Heads[int]  # attention heads; D must be a multiple
    mlp_ratio: bounds.MlpRatio[float]  # hidden width of the MLP, in units of D
    distillation: DistillationToken | None  # a second token and head; None: the class token alone
    drop_path: LinearStochasticDepth
    in_chans: bounds.Channels[int]  # channels of an image
    num_classes: bounds.Classes[int]  # classes of a head

    @property
    def fusion(self) -> Fusion | None:
        return self.distillation and self.distillation.prediction

    def ops(self, image_size: ImageSize) -> Iterator[Op]:
        d, (h, w), token = self.embed_dim, self.grid(image_size), self.distillation
        others = 1 if token is None else 2
        tokens = h * w + others
        yield from self.patch_ops(image_size, others)
        yield embedding("cls_token", d)
        if token is not None:
            yield embedding("dist_token", d, decayed=token.decayed)
        attn = attention_branch("blocks.*.norm1", "blocks.*.attn", tokens, d, self.num_heads)
        mlp = mlp_branch("blocks.*.norm2", "blocks.*.mlp", tokens, d, self.hidden_dim)
        yield from repeat(self.depth, [*in_branch(0, attn), *in_branch(1, mlp)])
        yield from self.head_ops(tokens)
        if token is not None:
            yield linear("head_dist", 1, d, self.num_classes, keeps=False)

    def timm(self, image_size: ImageSize) -> dict[str, Any]:
        size = ARCHITECTURES.get(self.embed_dim, "deit_small")
        if self.distillation is None:
            return self.timm_as(f"{size}_patch16_224", image_size)
        described = self.timm_as(f"{size}_distilled_patch16_224", image_size)
        heads = {"classifier": ["head", "head_dist"]}
        return {**described, "pretrained_cfg": {**described["pretrained_cfg"], **heads}}


DEIT_SIZES = {
    # name: embed_dim, num_heads (thesis table 3.1)
    "ti16": (192, 3),
    "s16": (384, 6),
    "b16": (768, 12),
}
"""The sizes of DeiT."""


def deit(
    size: str,
    *,
    distillation: DistillationToken | None,
    drop_path: LinearStochasticDepth,
    num_classes: int,
    in_chans: int,
) -> DeiT:
    """A DeiT of one of `DEIT_SIZES`: 12 blocks, patches of 16 pixels (thesis table 3.1), MLPs four
    times as wide as its tokens."""
    embed_dim, num_heads = DEIT_SIZES[size]
    return DeiT(
        patch_size=16,
        embed_dim=embed_dim,
        depth=12,
        num_heads=num_heads,
        mlp_ratio=4.0,
        distillation=distillation,
        drop_path=drop_path,
        in_chans=in_chans,
        num_classes=num_classes,
    )
