"""The distillation token of DeiT and CaiT. No torch here."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["DistillationToken", "Fusion"]

Fusion = Literal["softmax", "logits"]


@dataclass(frozen=True)
class DistillationToken:
    """A second class token with a head of its own, which learns from a teacher (arXiv:2012.12877,
    section 4; thesis section 3.3)."""

    prediction: Fusion  # of both heads: the sum of their softmaxes (thesis), the mean of logits
    decayed: bool  # whether weight decay shrinks the token
