"""Initial weights of Fixup and T-Fixup, as the thesis adapts them: with LayerNorm and warm-up
(section 3.5.1). It gives no more than that; what is left open is as in the papers named here.

Shapes: D width.
"""

import torch
from torch import Tensor, nn

from bigvit.models.init import truncated

VALUES = ".attn.qkv.weight", ".attn.v.weight"  # of the first, the last third
QUERIES_AND_KEYS = ".attn.q.weight", ".attn.k.weight"
LAST = ".attn.proj.weight", ".mlp.fc2.weight"
FIRST = ".mlp.fc1.weight"


def fixup(name: str, value: Tensor, generator: torch.Generator, branches: int) -> Tensor | None:
    """Fixup's initial weights (arXiv:1901.09321, section 3): the heads and the last layer of
    every residual branch 0, its other layer times branches^(-1/2), as a branch has two. In
    attention those are the values and the projection.

    Args:
        value: zeros of the parameter's shape, which are written to.
        branches: residual branches of the model.

    Returns:
        None for a parameter that starts as it does otherwise.
    """
    if name.endswith(LAST) or name in ("head.weight", "aux_head.weight"):
        return value
    if not name.endswith((*VALUES, FIRST)):
        return None
    _matrices(name, truncated(value, generator))[-1].mul_(branches**-0.5)
    return value


def t_fixup(name: str, value: Tensor, generator: torch.Generator, blocks: int) -> Tensor | None:
    """T-Fixup's initial weights of an encoder (Huang et al., ICML 2020, section 3.2): attention and
    MLP by Xavier's uniform rule, the values, the projection and the MLP times 0.67 blocks^(-1/4).
    Patches, class token, positions and head start as they do otherwise.

    Args:
        value: zeros of the parameter's shape, which are written to.
        blocks: of the model.

    Returns:
        None for a parameter that starts as it does otherwise.
    """
    if not name.endswith((*VALUES, *LAST, FIRST, *QUERIES_AND_KEYS)):
        return None
    matrices = _matrices(name, value)
    for matrix in matrices:
        nn.init.xavier_uniform_(matrix, generator=generator)
    if not name.endswith(QUERIES_AND_KEYS):
        matrices[-1].mul_(0.67 * blocks**-0.25)
    return value


def _matrices(name: str, value: Tensor) -> list[Tensor]:
    """Views of a layer's matrices: of queries, keys and values where it has them all."""
    return list(value.chunk(3)) if name.endswith(".attn.qkv.weight") else [value]
