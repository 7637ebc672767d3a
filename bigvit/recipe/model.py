"""What an architecture is, as plain values, with its size as plain arithmetic. No torch here."""

from dataclasses import dataclass

ImageSize = int | tuple[int, int]
"""Pixels: the side of a square image, or (height, width)."""


def sides(image_size: ImageSize) -> tuple[int, int]:
    """(height, width) of an image, pixels."""
    return image_size if isinstance(image_size, tuple) else (image_size, image_size)


@dataclass(frozen=True)
class StochasticDepth:
    """Drop residual branches of random samples (arXiv:1603.09382), uniformly over depth.

    A rate above 0.1 keeps a fixed number of every `group` consecutive samples, drawn anew in each
    block and branch; a rate up to 0.1, or below 1/group, drops each sample independently.
    """

    rate: float  # mean share of (sample, branch) pairs dropped, in [0, 1)
    group: int  # consecutive samples of the global batch among which a fixed number is kept

    @property
    def grouped(self) -> bool:
        """Whether samples are kept by groups rather than one by one."""
        return self.rate > 0.1 and self.rate * self.group >= 1

    def kept(self, branches: int) -> list[int]:
        """Samples kept of each group, for each residual branch of the model in order.

        The counts differ by one at most and are spread evenly, so that the mean rate over all
        branches is the recipe's to within 1 / (2 * group * branches).
        """
        total = round(branches * self.group * (1 - self.rate))
        return [(i + 1) * total // branches - i * total // branches for i in range(branches)]

    def summary(self, branches: int) -> str:
        """The rates of all residual branches of a model, in a line."""
        if self.rate == 0:
            return f"stochastic depth 0: all samples kept in each of {branches} branches"
        if not self.grouped:
            return (
                f"stochastic depth {self.rate}: each sample dropped by itself in each of "
                f"{branches} branches (mean rate {self.rate:.4f})"
            )
        kept = self.kept(branches)
        mean = 1 - sum(kept) / (branches * self.group)
        less, more = min(kept), max(kept)
        where = f"in each of {branches} branches"
        if less < more:
            where = f"in {kept.count(less)} of {branches} branches, {more} in the others"
        return (
            f"stochastic depth {self.rate}: {less} of every {self.group} samples kept {where} "
            f"(mean rate {mean:.4f})"
        )


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


Model = ViT | ParallelViT


def _parameters(model: Model, image_size: ImageSize) -> int:
    """A pair of an attention and an MLP branch weighs the same in sequence and in parallel."""
    d, hidden, k = model.embed_dim, model.hidden_dim, model.num_classes
    h, w = model.grid(image_size)
    patches = d * model.in_chans * model.patch_size**2 + d
    norms_and_scales = 2 * 2 * d + 2 * d
    pair = (3 * d * d + 3 * d) + (d * d + d) + (2 * d * hidden + hidden + d) + norms_and_scales
    return patches + d + h * w * d + model.branches // 2 * pair + 2 * d + (d * k + k)


def _macs(model: Model, image_size: ImageSize) -> int:
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
