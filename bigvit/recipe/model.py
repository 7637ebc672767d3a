"""What an architecture is, as plain values, with its size as plain arithmetic. No torch here."""

from dataclasses import dataclass
from typing import Literal

from bigvit.recipe.backbones import CvT, ResNet, Swin, T2TViT
from bigvit.recipe.depth import ImageSize, StochasticDepth, sides
from bigvit.recipe.residual import (
    FixedLayerScale,
    LayerScale,
    Residual,
    UniformLayerScale,
    Unscaled,
)


class _OfPatches:
    """What models of square patches and blocks of one width have in common."""

    patch_size: int
    embed_dim: int
    depth: int
    mlp_ratio: float

    def grid(self, image_size: ImageSize) -> tuple[int, int]:
        """Patches (down, across) of an image of this size."""
        height, width = sides(image_size)
        return height // self.patch_size, width // self.patch_size

    def maps(self, image_size: ImageSize) -> list[tuple[int, tuple[int, int]]]:
        """Width and grid of the patches after each block; of CaiT's, each of the first stage."""
        return [(self.embed_dim, self.grid(image_size))] * self.depth

    @property
    def hidden_dim(self) -> int:
        """Hidden width of an MLP."""
        return int(self.embed_dim * self.mlp_ratio)


@dataclass(frozen=True)
class ViT(_OfPatches):
    """DeiT III's Vision Transformer (arXiv:2204.07118): LayerScale, uniform stochastic depth, and
    positions on the patches alone."""

    patch_size: int  # side of a square patch, pixels
    embed_dim: int  # width D of a token
    depth: int  # number of blocks, each an attention and an MLP branch
    num_heads: int  # attention heads; D must be a multiple
    mlp_ratio: float  # hidden width of the MLP, in units of D
    layer_scale: float  # initial value of LayerScale's diagonal
    drop_path: StochasticDepth
    in_chans: int  # channels of an image
    num_classes: int  # classes of the head

    @property
    def branches(self) -> int:
        """Residual branches, each with a stochastic depth of its own."""
        return 2 * self.depth

    def parameters(self, image_size: ImageSize) -> int:
        """Trainable parameters at this image size."""
        return _parameters(self, image_size)

    def macs(self, image_size: ImageSize) -> int:
        """Multiply-accumulates of one image's forward pass (what papers call GFLOPs)."""
        return _macs(self, image_size)


@dataclass(frozen=True)
class ParallelViT(_OfPatches):
    """DeiT III's Vision Transformer with parallel branches (arXiv:2203.09795): each block adds the
    sum of several attention branches, then the sum of as many MLP branches."""

    patch_size: int  # side of a square patch, pixels
    embed_dim: int  # width D of a token
    depth: int  # number of blocks
    branches_per_block: int  # attention branches of a block, and as many MLP branches
    num_heads: int  # attention heads of a branch; D must be a multiple
    mlp_ratio: float  # hidden width of an MLP branch, in units of D
    layer_scale: float  # initial value of LayerScale's diagonal, one a branch
    drop_path: StochasticDepth
    in_chans: int  # channels of an image
    num_classes: int  # classes of the head

    @property
    def branches(self) -> int:
        """Residual branches, each with a stochastic depth of its own."""
        return 2 * self.branches_per_block * self.depth

    def parameters(self, image_size: ImageSize) -> int:
        """Trainable parameters at this image size."""
        return _parameters(self, image_size)

    def macs(self, image_size: ImageSize) -> int:
        """Multiply-accumulates of one image's forward pass (what papers call GFLOPs)."""
        return _macs(self, image_size)


@dataclass(frozen=True)
class ClassAttention:
    """CaiT's second stage (arXiv:2103.17239, section 3): blocks in which the class token alone is
    updated, by attention to the patches. Nothing is dropped there."""

    depth: int  # class-attention blocks
    keys: Literal["class and patches", "patches"]  # what the class token attends to


@dataclass(frozen=True)
class ClassToken:
    """A class token joins the patches on the way (thesis table 3.13); 0 is where ViT has it."""

    layer: int  # the first self-attention block, counted from 0, that sees it


@dataclass(frozen=True)
class AveragePooling:
    """The mean of the patches, without a class token (thesis table 3.13)."""


Pooling = ClassAttention | ClassToken | AveragePooling


@dataclass(frozen=True)
class CaiT(_OfPatches):
    """CaiT (arXiv:2103.17239; thesis sections 3.5 to 3.7): self-attention between patches, then
    class attention, with a small factor on every residual branch; and what it is compared with."""

    patch_size: int  # side of a square patch, pixels
    embed_dim: int  # width D of a token
    depth: int  # number of self-attention blocks
    num_heads: int  # attention heads; D must be a multiple
    mlp_ratio: float  # hidden width of the MLP, in units of D
    talking_heads: bool  # whether self-attention mixes its heads (arXiv:2003.02436)
    residual: Residual  # what multiplies the residual branches of both stages
    pooling: Pooling  # how the patches become the one vector that is classified
    drop_path: StochasticDepth  # of the self-attention blocks
    in_chans: int  # channels of an image
    num_classes: int  # classes of the head

    @property
    def branches(self) -> int:
        """Residual branches with a stochastic depth of their own."""
        return 2 * self.depth

    @property
    def class_depth(self) -> int:
        """Class-attention blocks."""
        return self.pooling.depth if isinstance(self.pooling, ClassAttention) else 0

    def parameters(self, image_size: ImageSize) -> int:
        """Trainable parameters at this image size."""
        d, hidden, heads = self.embed_dim, self.hidden_dim, self.num_heads
        h, w = self.grid(image_size)
        match self.residual:
            case LayerScale() | UniformLayerScale():
                factors = d
            case FixedLayerScale() | Unscaled():
                factors = 0
            case _:
                factors = 1
        block = 4 * (d * d + d) + (2 * d * hidden + hidden + d) + 4 * d + 2 * factors
        talking = 2 * (heads * heads + heads) if self.talking_heads else 0
        blocks = self.depth * (block + talking) + self.class_depth * block
        class_token = 0 if isinstance(self.pooling, AveragePooling) else d
        patches = d * self.in_chans * self.patch_size**2 + d
        return patches + h * w * d + class_token + blocks + 2 * d + (d + 1) * self.num_classes

    def macs(self, image_size: ImageSize) -> int:
        """Multiply-accumulates of one image's forward pass (what papers call GFLOPs)."""
        d, hidden = self.embed_dim, self.hidden_dim
        h, w = self.grid(image_size)
        n = h * w
        inserted = self.pooling.layer if isinstance(self.pooling, ClassToken) else self.depth
        total = n * d * self.in_chans * self.patch_size**2 + d * self.num_classes
        for i in range(self.depth):
            tokens = n + (i >= inserted)
            mixed = 2 * self.num_heads**2 if self.talking_heads else 0
            total += tokens * (4 * d * d + 2 * d * hidden) + tokens**2 * (2 * d + mixed)
        if isinstance(self.pooling, ClassAttention):
            keys = n + (self.pooling.keys == "class and patches")
            total += self.pooling.depth * (2 * (1 + keys) * d * d + 2 * keys * d + 2 * d * hidden)
        return total


Model = ViT | ParallelViT | CaiT | Swin | T2TViT | CvT | ResNet


def _parameters(model: ViT | ParallelViT, image_size: ImageSize) -> int:
    """A pair of an attention and an MLP branch weighs the same in sequence and in parallel."""
    d, hidden, k = model.embed_dim, model.hidden_dim, model.num_classes
    h, w = model.grid(image_size)
    patches = d * model.in_chans * model.patch_size**2 + d
    norms_and_scales = 2 * 2 * d + 2 * d
    pair = (3 * d * d + 3 * d) + (d * d + d) + (2 * d * hidden + hidden + d) + norms_and_scales
    return patches + d + h * w * d + model.branches // 2 * pair + 2 * d + (d * k + k)


def _macs(model: ViT | ParallelViT, image_size: ImageSize) -> int:
    d, hidden = model.embed_dim, model.hidden_dim
    h, w = model.grid(image_size)
    tokens = h * w + 1
    patches = h * w * d * model.in_chans * model.patch_size**2
    pair = tokens * (4 * d * d + 2 * d * hidden) + 2 * tokens * tokens * d
    return patches + model.branches // 2 * pair + d * model.num_classes


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
    """A ViT of one of `VIT_SIZES`, its MLPs four times as wide as its tokens."""
    patch_size, embed_dim, depth, num_heads = VIT_SIZES[size]
    return ViT(
        patch_size=patch_size,
        embed_dim=embed_dim,
        depth=depth,
        num_heads=num_heads,
        mlp_ratio=4.0,
        layer_scale=layer_scale,
        drop_path=drop_path,
        in_chans=in_chans,
        num_classes=num_classes,
    )


CAIT_SIZES = {
    # name: embed_dim, depth, LayerScale, drop-path (thesis tables 3.15, 3.16)
    "xxs24": (192, 24, 1e-5, 0.05),
    "xxs36": (192, 36, 1e-6, 0.1),
    "xs24": (288, 24, 1e-5, 0.05),
    "xs36": (288, 36, 1e-6, 0.1),
    "s24": (384, 24, 1e-5, 0.1),
    "s36": (384, 36, 1e-6, 0.2),
    "s48": (384, 48, 1e-6, 0.3),
    "m24": (768, 24, 1e-5, 0.2),
    "m36": (768, 36, 1e-6, 0.3),
    "m48": (768, 48, 1e-6, 0.4),
}
"""The ten models of CaiT."""


def cait(size: str, *, group: int, num_classes: int, in_chans: int) -> CaiT:
    """A CaiT of one of `CAIT_SIZES`: 48 channels a head, two class-attention blocks (thesis
    section 3.7), its MLPs four times as wide as its tokens.

    Args:
        group: of its stochastic depth, consecutive samples.
    """
    embed_dim, depth, layer_scale, drop_path = CAIT_SIZES[size]
    return CaiT(
        patch_size=16,
        embed_dim=embed_dim,
        depth=depth,
        num_heads=embed_dim // 48,
        mlp_ratio=4.0,
        talking_heads=True,
        residual=LayerScale(init=layer_scale),
        pooling=ClassAttention(depth=2, keys="class and patches"),
        drop_path=StochasticDepth(rate=drop_path, group=group),
        in_chans=in_chans,
        num_classes=num_classes,
    )


def shape(model: Model) -> str:
    """Widths, depths and heads of a model in a few characters."""
    match model:
        case Swin():
            depths = "-".join(map(str, model.depths))
            return f"{model.embed_dim}/{depths}, patch {model.patch_size}"
        case CvT():
            return f"{'-'.join(map(str, model.embed_dims))}/{'-'.join(map(str, model.depths))}"
        case ResNet():
            return "-".join(map(str, model.depths))
        case T2TViT():
            return f"{model.embed_dim}/{model.depth}/{model.num_heads}"
        case _:
            patch = f"patch {model.patch_size}"
            return f"{model.embed_dim}/{model.depth}/{model.num_heads}, {patch}"
