"""MixToken (arXiv:2104.10858, section 3.3): tokens of another image in the place of an image's own,
so that each token is of one image.

Shapes: B images, N tokens of a grid h x w, D width.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class TokenMix(NamedTuple):
    """Which tokens are another image's."""

    partners: Tensor  # (B, N) bool: whether a token is its image's partner's
    group: int  # images in a row that are mixed: the i-th one's partner is the i-th from the end


def partners_of(values: Tensor, group: int) -> Tensor:
    """What belongs to each image (B, ...) -> what belongs to its partner (B, ...)."""
    return values.unflatten(0, (-1, group)).flip(1).flatten(0, 1)


def inside(box: Tensor, grid: tuple[int, int]) -> Tensor:
    """Tokens (B, N) bool, row by row, in each image's box (B, 4): rows from, to, columns from, to,
    in tokens."""
    top, bottom, left, right = box[:, :, None].unbind(1)
    rows = torch.arange(grid[0], device=box.device)
    columns = torch.arange(grid[1], device=box.device)
    down, across = (rows >= top) & (rows < bottom), (columns >= left) & (columns < right)
    return (down[:, :, None] & across[:, None]).flatten(1)


def mix_tokens(tokens: Tensor, mix: TokenMix) -> Tensor:
    """Tokens (B, N, D), or what else lies on their grid -> mixed with their partners'."""
    return torch.where(mix.partners[:, :, None], partners_of(tokens, mix.group), tokens)
