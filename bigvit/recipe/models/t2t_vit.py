"""T2T-ViT. No torch here."""

from collections.abc import Iterator
from dataclasses import dataclass

from bigvit.recipe import bounds
from bigvit.recipe.depth import ImageSize, StochasticDepth, sides
from bigvit.recipe.models.description import Grid
from bigvit.recipe.models.ops import (
    Op,
    attention_branch,
    embedding,
    in_branch,
    linear,
    mlp_branch,
    norm,
    repeat,
)
from bigvit.recipe.models.uniform import Uniform

__all__ = ["T2TViT"]

SPLITS = ((7, 4, 2), (3, 2, 1), (3, 2, 1))
"""Kernel, stride and padding of the soft splits, pixels or tokens."""


@dataclass(frozen=True)
class T2TViT(Uniform):
    """T2T-ViT (arXiv:2101.11986): overlapping patches of patches, each mixed by a Performer, then a
    ViT without biases on q, k, v and with fixed positions."""

    token_dim: bounds.Width[int]  # width of a token while patches are made
    embed_dim: bounds.Width[int]  # width D of a token
    depth: bounds.Depth[int]  # blocks
    num_heads: bounds.Heads[int]  # attention heads; D must be a multiple
    mlp_ratio: bounds.MlpRatio[float]  # hidden width of the MLP, in units of D
    drop_path: StochasticDepth
    in_chans: bounds.Channels[int]  # channels of an image
    num_classes: bounds.Classes[int]  # classes of the head

    def splits(self, image_size: ImageSize) -> list[tuple[int, Grid]]:
        """Width and grid of the tokens that each of the three soft splits makes."""
        grid, chans, made = sides(image_size), self.in_chans, list[tuple[int, Grid]]()
        for split in SPLITS:
            grid = convolved(grid, *split)
            made.append((chans * split[0] ** 2, grid))
            chans = self.token_dim
        return made

    def grid(self, image_size: ImageSize) -> Grid:
        """Tokens (down, across) of an image of this size."""
        return self.splits(image_size)[-1][1]

    def ops(self, image_size: ImageSize) -> Iterator[Op]:
        d, (*mixed, (last, (h, w))) = self.embed_dim, self.splits(image_size)
        for i, (dim, (down, across)) in enumerate(mixed, 1):
            yield from self._performer(f"tokens_to_token.attention{i}", down * across, dim)
        yield linear("tokens_to_token.project", h * w, last, d)
        yield embedding("cls_token", d)
        tokens = h * w + 1
        attn = attention_branch(
            "blocks.*.norm1", "blocks.*.attn", tokens, d, self.num_heads, qkv_bias=False
        )
        mlp = mlp_branch("blocks.*.norm2", "blocks.*.mlp", tokens, d, self.hidden_dim)
        yield from repeat(self.depth, [*in_branch(0, attn), *in_branch(1, mlp)])
        yield from self.head_ops(tokens)

    def _performer(self, module: str, tokens: int, dim: int) -> Iterator[Op]:
        """Its random features are not trained."""
        d = self.token_dim
        features = d // 2
        products = 2 * d * features + features + 2 * features * d  # features, their sum, attention
        yield norm(f"{module}.norm1", tokens, dim)
        yield linear(f"{module}.kqv", tokens, dim, 3 * d)
        # k, q, v; an exponential and its share of each feature; the sums' quotient; two sums
        kept = tokens * (3 * d + 4 * features + d + 1) + 2 * features * (d + 1)
        yield Op(module, "attention", 0, tokens * products, 0, wide=kept)
        yield linear(f"{module}.proj", tokens, d, d)
        yield norm(f"{module}.norm2", tokens, d)
        yield linear(f"{module}.mlp.0", tokens, d, d)
        yield Op(f"{module}.mlp.1", "activation", 0, 0, tokens * d)
        yield linear(f"{module}.mlp.2", tokens, d, d)


def convolved(grid: Grid, kernel: int, stride: int, padding: int) -> Grid:
    """The grid that a convolution, or a soft split, makes of another."""
    h, w = ((side + 2 * padding - kernel) // stride + 1 for side in grid)
    return h, w
