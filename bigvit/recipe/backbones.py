"""The other backbones of dense relative localization's paper (arXiv:2106.03746), as plain values,
with their sizes as plain arithmetic. No torch here.

Parameters are the trained ones; multiply-accumulates are those of one image's forward pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bigvit.recipe.depth import ImageSize, StochasticDepth, sides

Grid = tuple[int, int]


@dataclass(frozen=True)
class Swin:
    """Swin Transformer (arXiv:2103.14030): attention within windows, shifted in every second block;
    each stage halves the grid and doubles the width. Uniform stochastic depth (theirs: linear)."""

    patch_size: int  # side of a square patch, pixels
    embed_dim: int  # width of a token in the first stage
    depths: tuple[int, ...]  # blocks of each stage
    num_heads: tuple[int, ...]  # attention heads of each stage
    window_size: int  # side of a window, tokens; a smaller grid is one window
    mlp_ratio: float  # hidden width of the MLP, in units of the token's
    drop_path: StochasticDepth
    in_chans: int  # channels of an image
    num_classes: int  # classes of the head

    @property
    def depth(self) -> int:
        return sum(self.depths)

    @property
    def branches(self) -> int:
        """Residual branches, each with a stochastic depth of its own."""
        return 2 * self.depth

    def stages(self, image_size: ImageSize) -> Iterator[tuple[int, int, int, Grid]]:
        """Blocks, heads, width and grid of each stage."""
        h, w = (side // self.patch_size for side in sides(image_size))
        for i, (depth, heads) in enumerate(zip(self.depths, self.num_heads, strict=True)):
            yield depth, heads, self.embed_dim * 2**i, (h, w)
            h, w = -(-h // 2), -(-w // 2)

    def window(self, grid: Grid) -> Grid:
        """Tokens (down, across) of a window on a grid."""
        return min(grid[0], self.window_size), min(grid[1], self.window_size)

    def grid(self, image_size: ImageSize) -> Grid:
        """Last tokens (down, across) of an image of this size."""
        return self.maps(image_size)[-1][1]

    def maps(self, image_size: ImageSize) -> list[tuple[int, Grid]]:
        """Width and grid of each block's tokens."""
        return [(d, grid) for n, _, d, grid in self.stages(image_size) for _ in range(n)]

    def parameters(self, image_size: ImageSize) -> int:
        """Trained parameters at this image size."""
        d, k = self.embed_dim, self.num_classes
        total = d * self.in_chans * self.patch_size**2 + d + 2 * d
        for i, (depth, heads, d, grid) in enumerate(self.stages(image_size)):
            hidden, (h, w) = int(d * self.mlp_ratio), self.window(grid)
            merging = 2 * 2 * d + 2 * d * d if i else 0
            table = (2 * h - 1) * (2 * w - 1) * heads
            total += merging + depth * (_attention(d) + _mlp(d, hidden) + 4 * d + table)
        return total + 2 * d + d * k + k

    def macs(self, image_size: ImageSize) -> int:
        """Multiply-accumulates of one image's forward pass."""
        height, width = sides(image_size)
        patches = (height // self.patch_size) * (width // self.patch_size)
        total, d = patches * self.embed_dim * self.in_chans * self.patch_size**2, 0
        for i, (depth, _, d, (h, w)) in enumerate(self.stages(image_size)):
            down, across = self.window((h, w))
            padded = -(-h // down) * down * -(-w // across) * across
            attention = padded * 4 * d * d + 2 * padded * down * across * d
            merging = h * w * 2 * d * d if i else 0
            total += merging + depth * (attention + h * w * 2 * d * int(d * self.mlp_ratio))
        return total + d * self.num_classes


@dataclass(frozen=True)
class T2TViT:
    """T2T-ViT (arXiv:2101.11986): overlapping patches of patches, each mixed by a Performer, then a
    ViT without biases on q, k, v and with fixed positions."""

    token_dim: int  # width of a token while patches are made
    embed_dim: int  # width D of a token
    depth: int  # blocks
    num_heads: int  # attention heads; D must be a multiple
    mlp_ratio: float  # hidden width of the MLP, in units of D
    drop_path: StochasticDepth
    in_chans: int  # channels of an image
    num_classes: int  # classes of the head

    @property
    def branches(self) -> int:
        """Residual branches, each with a stochastic depth of its own."""
        return 2 * self.depth

    @property
    def hidden_dim(self) -> int:
        """Hidden width of the MLP."""
        return int(self.embed_dim * self.mlp_ratio)

    def splits(self, image_size: ImageSize) -> list[tuple[int, Grid]]:
        """Width and grid of the tokens that each of the three soft splits makes."""
        grid, chans, made = sides(image_size), self.in_chans, list[tuple[int, Grid]]()
        for kernel, stride, padding in SPLITS:
            h, w = ((side + 2 * padding - kernel) // stride + 1 for side in grid)
            grid = h, w
            made.append((chans * kernel**2, grid))
            chans = self.token_dim
        return made

    def grid(self, image_size: ImageSize) -> Grid:
        """Tokens (down, across) of an image of this size."""
        return self.splits(image_size)[-1][1]

    def maps(self, image_size: ImageSize) -> list[tuple[int, Grid]]:
        """Width and grid of each block's tokens."""
        return [(self.embed_dim, self.grid(image_size))] * self.depth

    def parameters(self, image_size: ImageSize) -> int:
        """Trained parameters at this image size; the Performers' w are not."""
        d, t, k = self.embed_dim, self.token_dim, self.num_classes
        (one, _), (two, _), (three, _) = self.splits(image_size)
        performers = sum(2 * c + 3 * (c * t + t) + 3 * (t * t + t) + 2 * t for c in (one, two))
        block = _attention(d) - 3 * d + _mlp(d, self.hidden_dim) + 4 * d
        return performers + (three * d + d) + d + self.depth * block + 2 * d + (d * k + k)

    def macs(self, image_size: ImageSize) -> int:
        """Multiply-accumulates of one image's forward pass."""
        d, t = self.embed_dim, self.token_dim
        total, features = 0, t // 2
        *mixed, (last, (h, w)) = self.splits(image_size)
        for c, (down, across) in mixed:
            each = 3 * c * t + 3 * t * t + 4 * t * features + features
            total += down * across * each
        tokens = h * w + 1
        block = tokens * (4 * d * d + 2 * d * self.hidden_dim) + 2 * tokens * tokens * d
        return total + h * w * last * d + self.depth * block + d * self.num_classes


SPLITS = ((7, 4, 2), (3, 2, 1), (3, 2, 1))
"""Kernel, stride and padding of T2T-ViT's soft splits, pixels or tokens."""


@dataclass(frozen=True)
class CvT:
    """CvT (arXiv:2103.15808): each stage begins with an overlapping convolution; queries, keys and
    values are depthwise convolutions; a class token in the last stage alone, no positions."""

    embed_dims: tuple[int, ...]  # width of each stage
    depths: tuple[int, ...]  # blocks of each stage
    num_heads: tuple[int, ...]  # attention heads of each stage
    mlp_ratio: float  # hidden width of the MLP, in units of the token's
    drop_path: StochasticDepth
    in_chans: int  # channels of an image
    num_classes: int  # classes of the head

    @property
    def depth(self) -> int:
        return sum(self.depths)

    @property
    def branches(self) -> int:
        """Residual branches, each with a stochastic depth of its own."""
        return 2 * self.depth

    def stages(self, image_size: ImageSize) -> Iterator[tuple[int, int, int, Grid]]:
        """Blocks, heads, width and grid of each stage."""
        grid = sides(image_size)
        for i, (n, heads, d) in enumerate(
            zip(self.depths, self.num_heads, self.embed_dims, strict=True)
        ):
            kernel, stride, padding = SPLITS[min(i, 1)]
            h, w = ((side + 2 * padding - kernel) // stride + 1 for side in grid)
            grid = h, w
            yield n, heads, d, grid

    def grid(self, image_size: ImageSize) -> Grid:
        """Last tokens (down, across) of an image of this size."""
        return self.maps(image_size)[-1][1]

    def maps(self, image_size: ImageSize) -> list[tuple[int, Grid]]:
        """Width and grid of each block's tokens."""
        return [(d, grid) for n, _, d, grid in self.stages(image_size) for _ in range(n)]

    def parameters(self, image_size: ImageSize) -> int:
        """Trained parameters at this image size."""
        total, below = 0, self.in_chans
        for i, (depth, _, d, _) in enumerate(self.stages(image_size)):
            kernel = SPLITS[min(i, 1)][0]
            projections = 3 * (9 * d + 2 * d)
            block = projections + _attention(d) + _mlp(d, int(d * self.mlp_ratio)) + 4 * d
            total += below * kernel**2 * d + d + 2 * d + depth * block
            below = d
        return total + below + 2 * below + below * self.num_classes + self.num_classes

    def macs(self, image_size: ImageSize) -> int:
        """Multiply-accumulates of one image's forward pass."""
        total, below = 0, self.in_chans
        for i, (depth, _, d, (h, w)) in enumerate(self.stages(image_size)):
            kernel, last = SPLITS[min(i, 1)][0], i == len(self.depths) - 1
            queries, keys = h * w + last, -(-h // 2) * -(-w // 2) + last
            convolutions = 9 * d * (queries + 2 * keys - 3 * last)
            linear = 2 * (queries + keys) * d * d + 2 * queries * keys * d
            mlp = queries * 2 * d * int(d * self.mlp_ratio)
            total += h * w * below * kernel**2 * d + depth * (convolutions + linear + mlp)
            below = d
        return total + below * self.num_classes


@dataclass(frozen=True)
class ResNet:
    """ResNet (arXiv:1512.03385) of bottleneck blocks, the stride in their 3 x 3 convolution."""

    depths: tuple[int, ...]  # blocks of each stage
    in_chans: int  # channels of an image
    num_classes: int  # classes of the head

    @property
    def drop_path(self) -> StochasticDepth:
        """None."""
        return StochasticDepth(rate=0.0, group=1)

    @property
    def depth(self) -> int:
        return sum(self.depths)

    @property
    def branches(self) -> int:
        """Residual branches."""
        return self.depth

    def stages(self, image_size: ImageSize) -> Iterator[tuple[int, int, Grid]]:
        """Blocks, width and grid of each stage."""
        h, w = (-(-side // 4) for side in sides(image_size))
        for i, depth in enumerate(self.depths):
            yield depth, 256 * 2**i, (h, w)
            h, w = -(-h // 2), -(-w // 2)

    def grid(self, image_size: ImageSize) -> Grid:
        """Last tokens (down, across) of an image of this size."""
        return self.maps(image_size)[-1][1]

    def maps(self, image_size: ImageSize) -> list[tuple[int, Grid]]:
        """Width and grid of each block's tokens."""
        return [(d, grid) for n, d, grid in self.stages(image_size) for _ in range(n)]

    def parameters(self, image_size: ImageSize) -> int:
        """Trained parameters at this image size."""
        total, below = 49 * 64 * self.in_chans + 2 * 64, 64
        for depth, d, _ in self.stages(image_size):
            inner = d // 4
            rest = 9 * inner**2 + 2 * inner + 2 * inner + inner * d + 2 * d
            total += (below * inner + rest) + (depth - 1) * (d * inner + rest) + below * d + 2 * d
            below = d
        return total + below * self.num_classes + self.num_classes

    def macs(self, image_size: ImageSize) -> int:
        """Multiply-accumulates of one image's forward pass."""
        h, w = (-(-side // 2) for side in sides(image_size))
        total, below, before = h * w * 49 * 64 * self.in_chans, 64, 0
        for i, (depth, d, (h, w)) in enumerate(self.stages(image_size)):
            inner, here = d // 4, h * w
            rest = here * (9 * inner**2 + inner * d)
            first = (before if i else here) * below * inner + rest + here * below * d
            total += first + (depth - 1) * (here * d * inner + rest)
            below, before = d, here
        return total + below * self.num_classes


def _attention(d: int) -> int:
    """Parameters of q, k, v and the projection, with biases."""
    return 4 * (d * d + d)


def _mlp(d: int, hidden: int) -> int:
    """Parameters of an MLP."""
    return 2 * d * hidden + hidden + d
