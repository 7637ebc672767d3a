"""CvT. No torch here."""

from collections.abc import Iterator
from dataclasses import dataclass

from bigvit.recipe import bounds
from bigvit.recipe.depth import ImageSize, StochasticDepth, sides
from bigvit.recipe.models.description import Grid
from bigvit.recipe.models.ops import (
    Op,
    attention,
    batch_norm,
    conv,
    embedding,
    in_branch,
    linear,
    mlp_branch,
    norm,
    repeat,
    stream,
)
from bigvit.recipe.models.stages import StagedAttention
from bigvit.recipe.models.t2t_vit import SPLITS, convolved

__all__ = ["CvT"]


@dataclass(frozen=True)
class CvT(StagedAttention):
    """CvT (arXiv:2103.15808): each stage begins with an overlapping convolution; queries, keys and
    values are depthwise convolutions; a class token in the last stage alone, no positions."""

    embed_dims: bounds.Width[tuple[int, ...]]  # width of each stage
    depths: bounds.Depth[tuple[int, ...]]  # blocks of each stage
    num_heads: bounds.Heads[tuple[int, ...]]  # attention heads of each stage
    mlp_ratio: bounds.MlpRatio[float]  # hidden width of the MLP, in units of the token's
    drop_path: StochasticDepth
    in_chans: bounds.Channels[int]  # channels of an image
    num_classes: bounds.Classes[int]  # classes of the head

    width = "embed_dims"
    beginning = ("stage0.",)

    @property
    def widths(self) -> tuple[int, ...]:
        return self.embed_dims

    @property
    def summary(self) -> str:
        return f"{'-'.join(map(str, self.embed_dims))}/{'-'.join(map(str, self.depths))}"

    def stages(self, image_size: ImageSize) -> Iterator[tuple[int, int, int, Grid]]:
        grid, each = sides(image_size), zip(self.depths, self.num_heads, self.widths, strict=True)
        for i, (depth, heads, d) in enumerate(each):
            grid = convolved(grid, *SPLITS[min(i, 1)])
            yield depth, heads, d, grid

    def ops(self, image_size: ImageSize) -> Iterator[Op]:
        (down, across), below, tokens, first = sides(image_size), self.in_chans, 0, 0
        for i, (depth, heads, d, (h, w)) in enumerate(self.stages(image_size)):
            embed, last = f"stage{i}.patch_embed", i == len(self.depths) - 1
            kernel, kept = SPLITS[min(i, 1)][0], down * across * below
            yield conv(f"{embed}.proj", h * w, below, d, kernel, kept, bias=True)
            yield norm(f"{embed}.norm", h * w, d)
            if last:
                yield embedding(f"stage{i}.cls_token", d)
            block = self._block(f"stage{i}.blocks.*", heads, d, (h, w), int(last))
            yield from repeat(depth, block, first)
            (down, across), below, tokens, first = (h, w), d, h * w + last, first + depth
        yield norm("norm", tokens, below)
        # the class token is kept with the tokens that it is one of
        yield linear("head", 1, below, self.num_classes)._replace(kept=tokens * below)

    def _block(self, block: str, heads: int, d: int, grid: Grid, first: int) -> Iterator[Op]:
        """Args: first: class tokens, which no convolution sees."""
        tokens, hidden = grid[0] * grid[1] + first, int(d * self.mlp_ratio)
        mlp = mlp_branch(f"{block}.norm2", f"{block}.mlp", tokens, d, hidden)
        yield from in_branch(0, self._attention(block, heads, d, grid, first))
        yield from in_branch(1, mlp)

    def _attention(self, block: str, heads: int, d: int, grid: Grid, first: int) -> Iterator[Op]:
        cells, attn = grid[0] * grid[1], f"{block}.attn"
        fewer = -(-grid[0] // 2) * -(-grid[1] // 2)
        queries, keys = cells + first, fewer + first
        yield stream(f"{block}.norm1", queries, d)
        yield norm(f"{block}.norm1", queries, d, keeps=False)
        for name, made in (("q", cells), ("k", fewer), ("v", fewer)):
            kept = queries * d if name == "q" else 0
            yield conv(f"{attn}.conv_proj_{name}.conv", made, 1, d, 3, kept)
            yield batch_norm(f"{attn}.conv_proj_{name}.bn", made, d)
            yield linear(f"{attn}.proj_{name}", made + first, d, d)
        yield attention(attn, queries, keys, d, heads)
        yield linear(f"{attn}.proj", queries, d, d)
