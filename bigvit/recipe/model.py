"""What an architecture is, as plain values, with its size as plain arithmetic. No torch here."""

from dataclasses import dataclass

from bigvit.recipe.backbones import CvT, ResNet, Swin, T2TViT
from bigvit.recipe.depth import ImageSize, StochasticDepth, sides


@dataclass(frozen=True)
class ViT:
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

    def grid(self, image_size: ImageSize) -> tuple[int, int]:
        """Patches (down, across) of an image of this size."""
        height, width = sides(image_size)
        return height // self.patch_size, width // self.patch_size

    def maps(self, image_size: ImageSize) -> list[tuple[int, tuple[int, int]]]:
        """Width and grid of each block's tokens."""
        return [(self.embed_dim, self.grid(image_size))] * self.depth

    @property
    def hidden_dim(self) -> int:
        """Hidden width of the MLP."""
        return int(self.embed_dim * self.mlp_ratio)

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
class ParallelViT:
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

    def grid(self, image_size: ImageSize) -> tuple[int, int]:
        """Patches (down, across) of an image of this size."""
        height, width = sides(image_size)
        return height // self.patch_size, width // self.patch_size

    def maps(self, image_size: ImageSize) -> list[tuple[int, tuple[int, int]]]:
        """Width and grid of each block's tokens."""
        return [(self.embed_dim, self.grid(image_size))] * self.depth

    @property
    def hidden_dim(self) -> int:
        """Hidden width of an MLP branch."""
        return int(self.embed_dim * self.mlp_ratio)

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


Model = ViT | ParallelViT | Swin | T2TViT | CvT | ResNet


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
