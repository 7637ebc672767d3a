"""What multiplies a residual branch, and how it starts (thesis section 3.5). No torch here.

Every block keeps its LayerNorm and every schedule its warm-up: the methods are adapted as the
thesis adapts them, as the originals do not converge there (tables 3.11, 3.12).
"""

from dataclasses import dataclass
from typing import Annotated

from bigvit.recipe.bounds import Bound, Factor

__all__ = [
    "BranchScalar",
    "FixedLayerScale",
    "Fixup",
    "LayerScale",
    "Residual",
    "TFixup",
    "UniformLayerScale",
    "Unscaled",
]


@dataclass(frozen=True)
class LayerScale:
    """A learned factor a channel (equation 3.7), all starting at one value; it may be 0."""

    init: Factor[float]  # initial value


@dataclass(frozen=True)
class UniformLayerScale:
    """A learned factor a channel, starting at random in [0, 2 mean] (table 3.12)."""

    mean: Annotated[float, Bound(0.0, 1e6, above=True)]  # of the initial values


@dataclass(frozen=True)
class FixedLayerScale:
    """Factors a channel that a training before ended with, and that are not trained (section
    3.5.3, "Re-training"): `--init` names it, and nothing else is taken from it."""


@dataclass(frozen=True)
class BranchScalar:
    """A learned factor a branch (equation 3.6): ReZero and SkipInit start at 0, and the column
    "alpha = epsilon" of table 3.11 at LayerScale's value."""

    init: Factor[float]  # initial value


@dataclass(frozen=True)
class Fixup:
    """A learned factor a branch, starting at 1, and Fixup's initial weights (arXiv:1901.09321). Its
    scalar biases are left out: those of the linear layers and of LayerNorm contain them."""


@dataclass(frozen=True)
class TFixup:
    """A learned factor a branch, starting at 1, and T-Fixup's initial weights of an encoder
    (proceedings.mlr.press/v119/huang20f)."""


@dataclass(frozen=True)
class Unscaled:
    """Nothing multiplies a branch, as in ViT and DeiT (equation 3.5)."""


Residual = (
    LayerScale | UniformLayerScale | FixedLayerScale | BranchScalar | Fixup | TFixup | Unscaled
)
