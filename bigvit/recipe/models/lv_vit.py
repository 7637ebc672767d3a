"""LV-ViT, and its sizes. No torch here."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Annotated

from bigvit.recipe import bounds
from bigvit.recipe.depth import ImageSize, LinearStochasticDepth, sides
from bigvit.recipe.models.description import Grid
from bigvit.recipe.models.ops import (
    Op,
    attention_branch,
    batch_norm,
    conv,
    embedding,
    in_branch,
    mlp_branch,
    repeat,
)
from bigvit.recipe.models.uniform import TokenLabeled

__all__ = ["LV_VIT_SIZES", "LVViT", "lv_vit"]


@dataclass(frozen=True)
class LVViT(TokenLabeled):
    """LV-ViT (arXiv:2104.10858): patches made by several convolutions, residual branches divided by
    a number, no biases on q, k, v, and a second head on every patch."""

    kernels: bounds.PatchSize[tuple[int, ...]]  # side of each convolution that patches are made by
    strides: bounds.PatchSize[tuple[int, ...]]  # of each; their product is the side of a patch
    filters: bounds.Width[int]  # channels that each but the last makes; BatchNorm and ReLU follow
    embed_dim: bounds.Width[int]  # width D of a token
    depth: bounds.Depth[int]  # number of blocks, each an attention and an MLP branch
    num_heads: bounds.Heads[int]  # attention heads; D must be a multiple
    mlp_ratio: bounds.MlpRatio[float]  # hidden width of the MLP, in units of D
    divisor: Annotated[float, bounds.Bound(0.0, 1e6, above=True)]  # of each residual branch
    dense_head: bool  # whether a head on every patch predicts with the class token's
    drop_path: LinearStochasticDepth
    in_chans: bounds.Channels[int]  # channels of an image
    num_classes: bounds.Classes[int]  # classes of a head

    @property
    def patch_size(self) -> int:
        """Side of a patch, pixels."""
        return prod(self.strides)

    @property
    def summary(self) -> str:
        return f"{super().summary}, patch {self.patch_size} by {len(self.kernels)} convolutions"

    def grid(self, image_size: ImageSize) -> Grid:
        """Patches (down, across) of an image of this size."""
        height, width = sides(image_size)
        return height // self.patch_size, width // self.patch_size

    def check(self, image_size: ImageSize, starts_from: str | None) -> None:
        super().check(image_size, starts_from)
        count, most = len(self.kernels), bounds.MOST_STAGES
        bounds.allow("model.kernels", self.kernels, 1 <= count <= most, f"1 to {most} numbers")
        as_many = f"{count} numbers, as many as model.kernels"
        bounds.allow("model.strides", self.strides, len(self.strides) == count, as_many)
        pairs = list(zip(self.kernels, self.strides, strict=True))
        whole = all(kernel >= stride and (stride > 1 or kernel % 2) for kernel, stride in pairs)
        wanted = "no smaller than model.strides each, and odd where that is 1"
        bounds.allow("model.kernels", self.kernels, whole, wanted)
        fits = all(side % self.patch_size == 0 for side in sides(image_size))
        wanted = f"a multiple of the product of model.strides ({self.patch_size})"
        bounds.allow("data.image_size", image_size, fits, wanted)

    def ops(self, image_size: ImageSize) -> Iterator[Op]:
        d, tokens = self.embed_dim, prod(self.grid(image_size)) + 1
        yield from self._patches(image_size)
        yield embedding("pos_embed", tokens * d)
        yield embedding("cls_token", d)
        attn = attention_branch(
            "blocks.*.norm1", "blocks.*.attn", tokens, d, self.num_heads, qkv_bias=False
        )
        mlp = mlp_branch("blocks.*.norm2", "blocks.*.mlp", tokens, d, self.hidden_dim)
        yield from repeat(self.depth, [*in_branch(0, attn), *in_branch(1, mlp)])
        yield from self.head_ops(tokens)
        yield from self.dense_ops(image_size)

    def _patches(self, image_size: ImageSize) -> Iterator[Op]:
        (height, width), chans = sides(image_size), self.in_chans
        kept = height * width * chans  # later what ReLU made, which is counted there
        for i, (kernel, stride) in enumerate(zip(self.kernels, self.strides, strict=True), 1):
            height, width = height // stride, width // stride
            cells, last = height * width, i == len(self.kernels)
            made, name = (self.embed_dim, "proj") if last else (self.filters, f"conv{i}")
            yield conv(f"patch_embed.{name}", cells, chans, made, kernel, kept, bias=last)
            if not last:
                yield batch_norm(f"patch_embed.bn{i}", cells, made)
                yield Op(f"patch_embed.relu{i}", "activation", 0, 0, cells * made)
            chans, kept = made, 0


LV_VIT_SIZES = {
    # name: embed_dim, depth, num_heads, filters, divisor (zihangJiang/TokenLabeling, lvvit.py)
    "t": (240, 12, 4, 64, 1.0),
    "s": (384, 16, 6, 64, 2.0),
    "m": (512, 20, 8, 64, 2.0),
    "l": (768, 24, 12, 128, 3.0),
}
"""The sizes of LV-ViT."""


def lv_vit(
    size: str,
    *,
    dense_head: bool,
    drop_path: LinearStochasticDepth,
    num_classes: int,
    in_chans: int,
) -> LVViT:
    """An LV-ViT of one of `LV_VIT_SIZES`: patches by four convolutions (table 3), MLPs three times
    as wide as its tokens (table 2)."""
    embed_dim, depth, num_heads, filters, divisor = LV_VIT_SIZES[size]
    return LVViT(
        kernels=(7, 3, 3, 8),
        strides=(2, 1, 1, 8),
        filters=filters,
        embed_dim=embed_dim,
        depth=depth,
        num_heads=num_heads,
        mlp_ratio=3.0,
        divisor=divisor,
        dense_head=dense_head,
        drop_path=drop_path,
        in_chans=in_chans,
        num_classes=num_classes,
    )
