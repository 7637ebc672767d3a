"""What every model returns. Shapes: B images, N patch tokens, D width, K classes; T tokens, N or,
with a class token before them, N + 1."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from bigvit.recipe import Fusion

NOTHING: Mapping[int, Tensor] = MappingProxyType({})


class TokenMap(NamedTuple):
    """Tokens that lie on a grid."""

    tokens: Tensor  # (B, N, D), row by row
    grid: tuple[int, int]  # tokens down, across; their product is N


class Features(NamedTuple):
    """What a trunk makes of images; a head reads it."""

    # (B, N, D): the patches' last features, row by row; normalised, if those are read
    tokens: Tensor
    grid: tuple[int, int]  # patches down, across; their product is N
    # (B, D): the class token, and the distillation token, normalised, where the trunk has them
    cls: Sequence[Tensor]
    blocks: dict[int, TokenMap]  # of those asked for, by number; not normalised, any type
    stream: Tensor  # (B, T, D): what the last block left, not normalised


class Output(NamedTuple):
    """All in the weights' type. Logits and what is classified are empty where neither is read."""

    logits: Tensor  # (B, K)
    # (B, N, D): the patches' last features, row by row; normalised, if those are read
    tokens: Tensor
    grid: tuple[int, int]  # patches down, across; their product is N
    cls: Tensor  # (B, D): what is classified, the class token's as a rule, normalised; without one
    # the mean of the tokens
    blocks: dict[int, TokenMap]  # of those asked for, by number; not normalised, any type
    distillation: Tensor | None = None  # (B, K): logits of the distillation head, if there is one
    dense: Tensor | None = None  # (B, N, K): logits of the head on patches, if there is one
    # by group of views (1, 2, ... of the data's `views`; 0 the images themselves): what the model
    # makes of them before its head (B, V, D), of the groups that an objective asks for
    views: Mapping[int, Tensor] = NOTHING
    # the same of the follower (without gradient), behind its copy of what the objective has
    # followed; float32
    followed: Mapping[int, Tensor] = NOTHING

    def prediction(self, fusion: Fusion | None) -> Tensor:
        """Logits (B, K) by all heads.

        Their softmax is the mean of both heads' softmaxes (thesis section 3.3, late fusion), in
        float32; or they are the mean of both heads' logits, as the authors' code and timm have it.
        To the class token's half the largest of the patches' is added, where those have a head, as
        LV-ViT's authors' code has it.
        """
        logits, others = self.logits, self.distillation
        if self.dense is not None:
            return logits + self.dense.amax(dim=1) / 2
        if fusion is None or others is None:
            return logits
        if fusion == "logits":
            return (logits + others) / 2
        each = torch.stack([logits, others]).float().log_softmax(dim=-1)
        return each.logsumexp(dim=0) - math.log(2)
