"""Swin Transformer. No torch here."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from bigvit.recipe import bounds
from bigvit.recipe.depth import ImageSize, StochasticDepth, sides
from bigvit.recipe.models.description import Grid, unknown
from bigvit.recipe.models.ops import (
    Op,
    embedding,
    in_branch,
    linear,
    mlp_branch,
    norm,
    repeat,
    stream,
)
from bigvit.recipe.models.pooling import AttentionPooling, AveragePooling, refuse_attention
from bigvit.recipe.models.stages import StagedAttention
from bigvit.recipe.models.uniform import check_patches, patch_conv

__all__ = ["PaddedSwin", "Swin"]


@dataclass(frozen=True)
class Swin(StagedAttention):
    """Swin Transformer (arXiv:2103.14030): attention within windows, shifted in every second block;
    each stage halves the grid and doubles the width. Uniform stochastic depth (theirs: linear). A
    grid that is not of whole windows is shifted first, then padded, as timm has it."""

    patch_size: bounds.PatchSize[int]  # side of a square patch, pixels
    embed_dim: bounds.Width[int]  # width of a token in the first stage
    depths: bounds.Depth[tuple[int, ...]]  # blocks of each stage
    num_heads: bounds.Heads[tuple[int, ...]]  # attention heads of each stage
    window_size: bounds.Side[int]  # side of a window, tokens; a smaller grid is one window
    mlp_ratio: bounds.MlpRatio[float]  # hidden width of the MLP, in units of the token's
    pooling: AveragePooling | AttentionPooling  # how the last tokens become what is classified
    drop_path: StochasticDepth
    in_chans: bounds.Channels[int]  # channels of an image
    num_classes: bounds.Classes[int]  # classes of the head

    beginning = "patch_embed.", "layers.0."

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(self.embed_dim * 2**i for i in range(len(self.depths)))

    @property
    def summary(self) -> str:
        return f"{self.embed_dim}/{'-'.join(map(str, self.depths))}, patch {self.patch_size}"

    def stages(self, image_size: ImageSize) -> Iterator[tuple[int, int, int, Grid]]:
        h, w = (side // self.patch_size for side in sides(image_size))
        for depth, heads, d in zip(self.depths, self.num_heads, self.widths, strict=True):
            yield depth, heads, d, (h, w)
            h, w = -(-h // 2), -(-w // 2)

    def window(self, grid: Grid) -> Grid:
        """Tokens (down, across) of a window on a grid."""
        return min(grid[0], self.window_size), min(grid[1], self.window_size)

    def windows(self, image_size: ImageSize) -> dict[str, Grid]:
        """Of each table of relative positions, by its name."""
        return {
            f"layers.{i}.blocks.{block}.attn.relative_position_bias_table": self.window(grid)
            for i, (depth, *_, grid) in enumerate(self.stages(image_size))
            for block in range(depth)
        }

    def ops(self, image_size: ImageSize) -> Iterator[Op]:
        d, tokens, first = self.embed_dim, 0, 0
        for i, (depth, heads, d, (h, w)) in enumerate(self.stages(image_size)):
            tokens, layer = h * w, f"layers.{i}"
            if i:
                yield norm(f"{layer}.downsample.norm", tokens, 2 * d)
                yield linear(f"{layer}.downsample.reduction", tokens, 2 * d, d, bias=False)
            else:
                yield patch_conv((h, w), self.patch_size, self.in_chans, d)
                own = norm("patch_embed.norm", tokens, d)
                yield own._replace(kept=own.wide, wide=0)  # in the weights' type, as timm has it
            yield from repeat(depth, self._block(f"{layer}.blocks.*", heads, d, (h, w)), first)
            first += depth
        if isinstance(self.pooling, AttentionPooling):
            yield from self.pooling.ops(self.depth, tokens, d, self.num_classes, "head.fc")
        else:
            yield norm("norm", tokens, d)
            yield linear("head.fc", 1, d, self.num_classes)

    def _block(self, block: str, heads: int, d: int, grid: Grid) -> Iterator[Op]:
        (h, w), (down, across) = grid, self.window(grid)
        padded = -(-h // down) * down * -(-w // across) * across  # to whole windows
        table = f"{block}.attn.relative_position_bias_table"
        offsets = (2 * down - 1) * (2 * across - 1)
        pairs = padded * down * across
        attending = [
            stream(f"{block}.norm1", h * w, d),
            norm(f"{block}.norm1", h * w, d, keeps=False),
            linear(f"{block}.attn.qkv", padded, d, 3 * d),
            embedding(table, offsets * heads, rows=offsets),
            # timm's keeps its map
            Op(f"{block}.attn", "attention", 0, 2 * pairs * d, 3 * padded * d + pairs * heads),
            linear(f"{block}.attn.proj", padded, d, d),
        ]
        hidden = int(d * self.mlp_ratio)
        mlp = mlp_branch(f"{block}.norm2", f"{block}.mlp", h * w, d, hidden)
        yield from chain(in_branch(0, attending), in_branch(1, mlp))

    def check(self, image_size: ImageSize, starts_from: str | None) -> None:
        super().check(image_size, starts_from)
        check_patches(self.patch_size, image_size)
        if isinstance(self.pooling, AttentionPooling):
            self.pooling.check(self.widths[-1])

    def timm(self, image_size: ImageSize) -> dict[str, Any]:
        refuse_attention(self.pooling, "Swin")
        return {
            "architecture": "swin_tiny_patch4_window7_224",
            "num_features": self.widths[-1],
            "global_pool": "avg",
            "model_args": {
                "img_size": list(sides(image_size)),
                "patch_size": self.patch_size,
                "in_chans": self.in_chans,
                "embed_dim": self.embed_dim,
                "depths": list(self.depths),
                "num_heads": list(self.num_heads),
                "window_size": self.window_size,
                "mlp_ratio": self.mlp_ratio,
            },
            "pretrained_cfg": {"first_conv": "patch_embed.proj", "classifier": "head.fc"},
        }


@dataclass(frozen=True)
class PaddedSwin(Swin):
    """The same as its authors' code for dense tasks has it: a window keeps its size on any grid,
    and a grid is padded to whole windows before it is shifted, so that none sees across an edge.
    Weights are the same at every size of images."""

    turns = True

    def window(self, grid: Grid) -> Grid:
        return self.window_size, self.window_size

    def timm(self, image_size: ImageSize) -> dict[str, Any]:
        window = self.window_size
        if any(h % window or w % window for *_, (h, w) in self.stages(image_size)):
            raise unknown(
                f"Swin that pads its grid before it is shifted, as images of {image_size} pixels "
                f"need with windows of {window}"
            )
        found = super().timm(image_size)
        return {**found, "model_args": {**found["model_args"], "always_partition": True}}
