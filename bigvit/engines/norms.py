# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
"""Norms of gradients, weights and LayerScales, block by block, of whatever a rank holds."""

import re
from collections.abc import Iterable

import torch
from torch import Tensor

from bigvit.ranks.joining import Ranks

Norms = dict[str, dict[str, float]]
"""By block: norms of its gradient (before clipping), of its weights, of its LayerScales."""

KINDS = ("gradient", "weight", "layer_scale")


class Squares:
    """Sums of squares that a rank adds up piece by piece, each element on one rank."""

    def __init__(self, names: Iterable[str]) -> None:
        """Args: names: of all parameters, the same on every rank."""
        self.blocks = sorted({block_of(name) for name in names}, key=_order)
        self.rows = {block: row for row, block in enumerate(self.blocks)}
        # by device, as some weights may be offloaded; read once, at the end
        self.sums: dict[torch.device, Tensor] = {}

    def add(self, name: str, gradient: Tensor, weight: Tensor) -> None:
        """Count a piece of a parameter."""
        device = gradient.device
        if device not in self.sums:
            shape = (len(self.blocks), len(KINDS))
            self.sums[device] = torch.zeros(shape, dtype=torch.float64, device=device)
        row = self.sums[device][self.rows[block_of(name)]]
        row[0] += gradient.double().square().sum()
        of_weight = weight.detach().double().square().sum()
        row[1] += of_weight
        if name.endswith((".gamma", ".gamma_1", ".gamma_2", ".ls1", ".ls2")):
            row[2] += of_weight

    def by_block(self, ranks: Ranks, norm: float, clip_norm: float | None) -> Norms:
        """Norms over all ranks, by block. Collective.

        Args:
            norm: of the whole gradient before it was clipped.
            clip_norm: what it was clipped to.
        """
        total = torch.zeros(len(self.blocks), len(KINDS), dtype=torch.float64)
        for sums in self.sums.values():
            total += sums.cpu()
        norms = ranks.sum(total).sqrt()
        norms[:, 0] *= 1 if clip_norm is None else max(1, (norm + 1e-6) / clip_norm)
        named = zip(self.blocks, norms.tolist(), strict=True)
        return {
            block: {kind: value for kind, value in zip(KINDS, row, strict=True) if value}
            for block, row in named
        }


def block_of(name: str) -> str:
    """`blocks.I` of a parameter in a block, also of a stage; otherwise its own module."""
    name = name.removeprefix("model.")
    found = re.match(r"(.*\bblocks\.\d+|\w+\.\d+)\.", name)
    return found[1] if found else name.split(".")[0]


def _order(block: str) -> str:
    """Sorts 10 after 9."""
    return re.sub(r"\d+", lambda number: number[0].zfill(6), block)
