"""PatchConvNet, and its sizes. No torch here."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2, prod
from typing import Literal

from bigvit.recipe import bounds
from bigvit.recipe.depth import ImageSize, StochasticDepth, sides
from bigvit.recipe.models.description import Description, Grid
from bigvit.recipe.models.ops import (
    Op,
    batch_norm,
    conv,
    linear,
    norm,
    repeat,
    scale,
    stream,
)
from bigvit.recipe.models.pooling import AttentionPooling, AveragePooling
from bigvit.recipe.models.uniform import check_patches, patch_conv

__all__ = ["PATCHCONVNET_SIZES", "PatchConvNet", "patchconvnet"]

SQUEEZE = 0.25
"""Width between the two layers of squeeze-and-excitation, in units of D."""


@dataclass(frozen=True)
class PatchConvNet(Description):
    """PatchConvNet (arXiv:2112.13692; thesis section 5.2): patches made by convolutions, a column
    of convolutional blocks on one grid, and pooling by attention. No positions."""

    patch_size: bounds.PatchSize[int]  # side of a patch, pixels
    # strided convolutions, each of which halves the grid, or one layer on a patch's pixels
    stem: Literal["convolutions", "linear"]
    embed_dim: bounds.Width[int]  # width D of a patch
    depth: bounds.Depth[int]  # blocks of the column
    norm: Literal["layer", "batch"]  # before each of the column's branches
    layer_scale: bounds.Factor[float]  # initial value of the diagonal on the column's branches
    pooling: AveragePooling | AttentionPooling  # how the patches become what is classified
    drop_path: StochasticDepth  # of the column
    in_chans: bounds.Channels[int]  # channels of an image
    num_classes: bounds.Classes[int]  # classes of the head

    has_attention = False  # but in the pooling
    turns = True

    @property
    def branches(self) -> int:
        return self.depth

    @property
    def summary(self) -> str:
        return f"{self.embed_dim}/{self.depth}, patch {self.patch_size}"

    @property
    def squeezed(self) -> int:
        """Width between the two layers of squeeze-and-excitation."""
        return max(1, round(SQUEEZE * self.embed_dim))

    @property
    def filters(self) -> list[int]:
        """Channels that each of the stem's convolutions makes, the last one D."""
        count = round(log2(self.patch_size)) if self.stem == "convolutions" else 0
        return [self.embed_dim // 2 ** (count - 1 - i) for i in range(count)]

    def grid(self, image_size: ImageSize) -> Grid:
        """Patches (down, across) of an image of this size."""
        height, width = sides(image_size)
        return height // self.patch_size, width // self.patch_size

    def maps(self, image_size: ImageSize) -> list[tuple[int, Grid]]:
        return [(self.embed_dim, self.grid(image_size))] * self.depth

    def check(self, image_size: ImageSize, starts_from: str | None) -> None:
        size, powers = self.patch_size, [2**i for i in range(1, 13)]
        if self.stem == "convolutions":
            halves = "a power of two from 2 on, for a stem of convolutions"
            bounds.allow("model.patch_size", size, size in powers, halves)
            thin, wanted = min(self.filters), f"{size // 2} or more, with patches of {size} pixels"
            bounds.allow("model.embed_dim", self.embed_dim, thin >= 1, wanted)
        check_patches(size, image_size)
        if isinstance(self.pooling, AttentionPooling):
            self.pooling.check(self.embed_dim)

    def ops(self, image_size: ImageSize) -> Iterator[Op]:
        d, patches = self.embed_dim, prod(self.grid(image_size))
        yield from self._stem(image_size)
        yield from repeat(self.depth, self._block(patches))
        if isinstance(self.pooling, AttentionPooling):
            yield from self.pooling.ops(self.depth, patches, d, self.num_classes, "head")
        else:
            yield norm("norm", patches, d)
            yield linear("head", 1, d, self.num_classes)

    def _stem(self, image_size: ImageSize) -> Iterator[Op]:
        if self.stem == "linear":
            yield patch_conv(self.grid(image_size), self.patch_size, self.in_chans, self.embed_dim)
            return
        (height, width), chans = sides(image_size), self.in_chans
        for i, made in enumerate(self.filters):
            kept = height * width * chans
            if i:  # GELU's input
                yield Op(f"patch_embed.proj.{2 * i - 1}", "activation", 0, 0, kept)
            height, width = height // 2, width // 2
            yield conv(f"patch_embed.proj.{2 * i}.0", height * width, chans, made, 3, kept)
            chans = made

    def _block(self, patches: int) -> Iterator[Op]:
        d, part, kept = self.embed_dim, "blocks.*.attn.qkv_pos", patches * self.embed_dim
        yield stream("blocks.*.norm1", patches, d)
        if self.norm == "layer":
            yield norm("blocks.*.norm1", patches, d, keeps=False)
        else:
            yield batch_norm("blocks.*.norm1", patches, d)._replace(wide=0)  # the stream is kept
        yield conv(f"{part}.0", patches, d, d, 1, kept, bias=True)
        yield Op(f"{part}.1", "activation", 0, 0, kept)
        yield conv(f"{part}.2", patches, 1, d, 3, kept, bias=True)
        yield Op(f"{part}.3", "activation", 0, 0, kept)
        yield linear(f"{part}.4.conv_reduce", 1, d, self.squeezed)
        yield linear(f"{part}.4.conv_expand", 1, self.squeezed, d)  # keeps what ReLU made
        yield Op(f"{part}.4", "activation", 0, 0, kept + d)
        yield conv(f"{part}.5", patches, d, d, 1, kept, bias=True)
        yield scale("blocks.*.gamma_1", d, kept)


PATCHCONVNET_SIZES = {
    # name: embed_dim, depth (thesis section 5.2.2), LayerScale (authors' code; S20, S36, B36: as
    # the others have it), drop-path (table 5.8; L60, L120: as B60, B120 have it)
    "s20": (384, 20, 1e-6, 0.0),
    "s36": (384, 36, 1e-6, 0.05),
    "s60": (384, 60, 1e-4, 0.15),
    "s120": (384, 120, 1e-6, 0.2),
    "b36": (768, 36, 1e-6, 0.2),
    "b60": (768, 60, 1e-6, 0.3),
    "b120": (768, 120, 1e-6, 0.4),
    "l60": (1024, 60, 1e-6, 0.3),
    "l120": (1024, 120, 1e-6, 0.4),
}
"""The sizes of PatchConvNet."""


def patchconvnet(size: str, *, group: int, num_classes: int, in_chans: int) -> PatchConvNet:
    """A PatchConvNet of one of `PATCHCONVNET_SIZES`: a stem of four convolutions, LayerNorm, and
    one query with one head, whose MLP is three times as wide (section 5.2.1; authors' code).

    Args:
        group: of its stochastic depth, consecutive samples.
    """
    embed_dim, depth, layer_scale, drop_path = PATCHCONVNET_SIZES[size]
    return PatchConvNet(
        patch_size=16,
        stem="convolutions",
        embed_dim=embed_dim,
        depth=depth,
        norm="layer",
        layer_scale=layer_scale,
        pooling=AttentionPooling(1, "one", mlp_ratio=3.0, layer_scale=layer_scale),
        drop_path=StochasticDepth(rate=drop_path, group=group),
        in_chans=in_chans,
        num_classes=num_classes,
    )
