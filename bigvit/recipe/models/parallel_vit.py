"""DeiT III's Vision Transformer with parallel branches. No torch here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

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
from bigvit.recipe.models.uniform import OfPatches

__all__ = ["ParallelViT"]

Branches = Annotated[int, bounds.Bound(1, 64)]


@dataclass(frozen=True)
class ParallelViT(OfPatches):
    """DeiT III's Vision Transformer with parallel branches (arXiv:2203.09795): each block adds the
    sum of several attention branches, then the sum of as many MLP branches."""

    patch_size: bounds.PatchSize[int]  # side of a square patch, pixels
    embed_dim: bounds.Width[int]  # width D of a token
    depth: bounds.Depth[int]  # number of blocks
    branches_per_block: Branches  # attention branches of a block, and as many MLP branches
    num_heads: bounds.Heads[int]  # attention heads of a branch; D must be a multiple
    mlp_ratio: bounds.MlpRatio[float]  # hidden width of an MLP branch, in units of D
    layer_scale: bounds.Factor[float]  # initial value of LayerScale's diagonal, one a branch
    drop_path: StochasticDepth
    in_chans: bounds.Channels[int]  # channels of an image
    num_classes: bounds.Classes[int]  # classes of the head

    @property
    def branches(self) -> int:
        return 2 * self.branches_per_block * self.depth

    def ops(self, image_size: ImageSize) -> Iterator[Op]:
        d, (h, w) = self.embed_dim, self.grid(image_size)
        yield from self.patch_ops(image_size)
        yield embedding("cls_token", d)
        yield from repeat(self.depth, self._block(h * w + 1))
        yield from self.head_ops(h * w + 1)

    def _block(self, tokens: int) -> Iterator[Op]:
        d, heads, attn, ffn = self.embed_dim, self.num_heads, "blocks.*.attns.*", "blocks.*.ffns.*"
        count = self.branches_per_block
        for i in range(count):
            some = attention_branch(f"{attn}.norm", f"{attn}.attn", tokens, d, heads, shared=i > 0)
            yield from in_branch(i, some, [scale(f"{attn}.ls", d, tokens * d)])
        for i in range(count):
            some = mlp_branch(f"{ffn}.norm", f"{ffn}.mlp", tokens, d, self.hidden_dim, shared=i > 0)
            yield from in_branch(count + i, some, [scale(f"{ffn}.ls", d, tokens * d)])

    def timm(self, image_size: ImageSize) -> dict[str, Any]:
        if self.branches_per_block != 2:  # the only ones of timm's whose blocks have any
            kind = f"ParallelViT with {self.branches_per_block} branches in a block, but with 2"
            raise unknown(kind)
        own: dict[str, Any] = {"init_values": self.layer_scale, "no_embed_class": True}
        return self.timm_as("vit_small_patch16_18x2_224", image_size, **own)
