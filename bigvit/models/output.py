"""What every model returns. Shapes: B images, N patch tokens, D width, K classes; T tokens, N or,
with a class token before them, N + 1."""

from typing import NamedTuple

from torch import Tensor


class TokenMap(NamedTuple):
    """Tokens that lie on a grid."""

    tokens: Tensor  # (B, N, D), row by row
    grid: tuple[int, int]  # tokens down, across; their product is N


class Features(NamedTuple):
    """What a trunk makes of images; a head reads it."""

    tokens: Tensor  # (B, N, D): the patches' last features, normalised, row by row
    grid: tuple[int, int]  # patches down, across; their product is N
    cls: Tensor | None  # (B, D): the class token, normalised, where the trunk has one
    blocks: dict[int, TokenMap]  # of those asked for, by number; not normalised, any type
    stream: Tensor  # (B, T, D): what the last block left, not normalised


class Output(NamedTuple):
    """All in the weights' type."""

    logits: Tensor  # (B, K)
    tokens: Tensor  # (B, N, D): the patches' last features, normalised, row by row
    grid: tuple[int, int]  # patches down, across; their product is N
    cls: Tensor  # (B, D): what is classified, the class token's as a rule, normalised; without one
    # the mean of the tokens
    blocks: dict[int, TokenMap]  # of those asked for, by number; not normalised, any type
