"""T2T-ViT (arXiv:2101.11986), with the names and shapes of the authors' `t2t_vit_14` (whose fixed
positions are no weights here).

Differs from theirs: stochastic depth is uniform over depth (theirs: linear), and the Performers
have no dropout.

Shapes: B images, N tokens, D width; T = N + 1 tokens, the class token first.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bigvit.layers.norm import LayerNorm
from bigvit.layers.performer import Performer
from bigvit.layers.plain_block import PlainBlock
from bigvit.layers.precision import upcast
from bigvit.layers.sinusoid import sinusoid
from bigvit.models.backbone import Backbone, Walk
from bigvit.models.output import Features
from bigvit.recipe import ImageSize, T2TViT
from bigvit.recipe.models.t2t_vit import SPLITS

EPS = 1e-5


class TokensToToken(nn.Module):
    """Overlapping patches, mixed, patched and mixed again, patched once more and made D wide."""

    def __init__(self, model: T2TViT, image_size: ImageSize) -> None:
        super().__init__()
        (first, _), (second, _), (last, _) = model.splits(image_size)
        self.attention1 = Performer(first, model.token_dim, EPS)
        self.attention2 = Performer(second, model.token_dim, EPS)
        self.project = nn.Linear(last, model.embed_dim)

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """images (B, C, H, W) -> tokens (B, N, D) row by row, and their grid (h, w)."""
        dtype, maps = images.dtype, images
        for split, mix in zip(SPLITS, (self.attention1, self.attention2), strict=False):
            tokens, grid = _soft_split(maps, *split)
            maps = mix(upcast(tokens)).transpose(1, 2).unflatten(2, grid)
        tokens, grid = _soft_split(maps, *SPLITS[-1])
        return self.project(tokens.to(dtype)), grid


def _soft_split(maps: Tensor, kernel: int, stride: int, padding: int):
    """(B, C, H, W) -> overlapping patches (B, N, C kernel^2) row by row, and their grid."""
    h, w = ((side + 2 * padding - kernel) // stride + 1 for side in maps.shape[2:])
    return F.unfold(maps, kernel, padding=padding, stride=stride).transpose(1, 2), (h, w)


class T2TVisionTransformer(Backbone):
    """T2T-ViT: tokens from tokens, a class token, positions, blocks, and a linear head."""

    def __init__(self, model: T2TViT, image_size: ImageSize) -> None:
        super().__init__()
        self.config = model
        self.tokens_to_token = TokensToToken(model, image_size)
        self.cls_token = nn.Parameter(torch.empty(1, 1, model.embed_dim))
        size = model.embed_dim, model.num_heads, model.hidden_dim
        each = (PlainBlock(*size, EPS, qkv_bias=False) for _ in range(model.depth))
        self.blocks = nn.ModuleList(each)
        self.norm = LayerNorm(model.embed_dim, EPS)
        self.head = nn.Linear(model.embed_dim, model.num_classes)

    def features(self, images: Tensor, walk: Walk) -> Features:
        x_BND, grid = self.tokens_to_token(images)
        x_BND = upcast(x_BND)
        x = torch.cat([upcast(self.cls_token).expand(len(x_BND), -1, -1), x_BND], dim=1)
        x = x + sinusoid(x.shape[1], x.shape[2], x.device).to(x.dtype)
        return self.normalised(walk(self.blocks, x, grid), grid, walk)

    def all_blocks(self) -> list[Any]:
        """The blocks, first to last."""
        return list(self.blocks)

    def block_classes(self) -> list[str]:
        """Names of the classes of all that a residual stream goes through, each on one device."""
        return [*super().block_classes(), Performer.__name__]

    def no_weight_decay(self) -> set[str]:
        """Names of matrices that are not decayed: the class token."""
        return {"cls_token"}

    def layer_id(self, name: str) -> int:
        """Depth of a parameter: 0 the embedding, i the i-th block, depth + 1 norm and head."""
        if name.startswith("blocks."):
            return int(name.split(".")[1]) + 1
        embedding = name.startswith(("cls_token", "tokens_to_token."))
        return 0 if embedding else self.config.depth + 1
