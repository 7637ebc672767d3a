"""What every model returns."""

from typing import NamedTuple

from torch import Tensor


class TokenMap(NamedTuple):
    """Tokens that lie on a grid."""

    tokens: Tensor  # (B, N, D), row by row
    grid: tuple[int, int]  # tokens down, across; their product is N


class Output(NamedTuple):
    """All in the weights' type. Shapes: B images, N patch tokens, D width, K classes."""

    logits: Tensor  # (B, K)
    tokens: Tensor  # (B, N, D): the patches' last features, normalised, row by row
    grid: tuple[int, int]  # patches down, across; their product is N
    cls: Tensor  # (B, D): what is classified, the class token's as a rule, normalised; without one
    # the mean of the tokens
    blocks: tuple[TokenMap, ...] = ()  # of each block where asked for, not normalised, any type
