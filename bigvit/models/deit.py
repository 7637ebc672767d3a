"""DeiT (arXiv:2012.12877; thesis sections 3.2, 3.3), with the names and shapes of timm's `deit_*`
and `deit_*_distilled_*`: a class token, perhaps a distillation token behind it with a head of its
own, and positions on all tokens.

Shapes: B images, N patches, D width, K classes; T = N + 1 tokens, or N + 2 with the distillation
token.
"""

import torch
from torch import Tensor, nn

from bigvit.layers.plain_block import PlainBlock
from bigvit.layers.positions import on_grid
from bigvit.layers.precision import upcast
from bigvit.models.backbone import Walk
from bigvit.models.output import Features
from bigvit.models.vit import ClassTokenTransformer
from bigvit.recipe import DeiT, ImageSize


class DistilledTransformer(ClassTokenTransformer):
    """DeiT, with its distillation token or without."""

    def __init__(self, model: DeiT, image_size: ImageSize) -> None:
        size = model.embed_dim, model.num_heads, model.hidden_dim
        super().__init__(model, image_size, (PlainBlock(*size) for _ in range(model.depth)))
        h, w = model.grid(image_size)
        others = 1 if model.distillation is None else 2
        self.pos_embed = nn.Parameter(torch.empty(1, h * w + others, model.embed_dim))

    def features(self, images: Tensor, walk: Walk) -> Features:
        x_BND, grid = self.patch_embed(images)
        x = torch.cat([self.class_tokens(len(x_BND)), upcast(x_BND)], dim=1)
        x = x + on_grid(self.pos_embed, self.grid, grid)
        return self.normalised(walk(self.blocks, x, grid), grid, walk)
