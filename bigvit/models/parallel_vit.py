"""DeiT III's ViT with parallel branches (arXiv:2203.09795): each block adds the sum of its
attention branches, then the sum of its MLP branches. H-26x2 has two of each, and H-52's size.

Names and shapes are those of timm's ViT with `ParallelThingsBlock`. Shapes: B images, N patches, D
width, T = N + 1 tokens.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from bigvit.layers.attention import Attention
from bigvit.layers.layer_scale import LayerScale
from bigvit.layers.mlp import Mlp
from bigvit.layers.norm import LayerNorm
from bigvit.layers.stochastic_depth import Drop, add_branches
from bigvit.models.vit import ClassTokenTransformer
from bigvit.recipe import ImageSize, ParallelViT


class AttentionBranch(nn.Module):
    """gamma attention(norm(x))."""

    def __init__(self, model: ParallelViT) -> None:
        super().__init__()
        self.norm = LayerNorm(model.embed_dim)
        self.attn = Attention(model.embed_dim, model.num_heads)
        self.ls = LayerScale(model.embed_dim, model.layer_scale)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D) -> (B, T, D)."""
        return self.ls(self.attn(self.norm(x)))


class MlpBranch(nn.Module):
    """gamma mlp(norm(x))."""

    def __init__(self, model: ParallelViT) -> None:
        super().__init__()
        self.norm = LayerNorm(model.embed_dim)
        self.mlp = Mlp(model.embed_dim, model.hidden_dim)
        self.ls = LayerScale(model.embed_dim, model.layer_scale)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D) -> (B, T, D)."""
        return self.ls(self.mlp(self.norm(x)))


class ParallelBlock(nn.Module):
    """x + sum of attention branches, then x + sum of MLP branches."""

    def __init__(self, model: ParallelViT) -> None:
        super().__init__()
        self.recompute = False
        count = range(model.branches_per_block)
        self.attns = nn.ModuleList(AttentionBranch(model) for _ in count)
        self.ffns = nn.ModuleList(MlpBranch(model) for _ in count)

    def forward(self, x: Tensor, drop: Sequence[Drop]) -> Tensor:
        """x (B, T, D), what the attention branches drop, then the MLPs -> (B, T, D)."""
        count = len(self.attns)
        x = add_branches(x, self.attns, drop[:count], self.recompute)
        return add_branches(x, self.ffns, drop[count:], self.recompute)


class ParallelVisionTransformer(ClassTokenTransformer):
    """A ViT whose blocks have parallel branches."""

    def __init__(self, model: ParallelViT, image_size: ImageSize) -> None:
        super().__init__(model, image_size, (ParallelBlock(model) for _ in range(model.depth)))
