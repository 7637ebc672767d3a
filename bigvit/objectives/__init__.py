"""Losses as pure functions of a model's output and the targets; `loss` knows them all.

Shapes: B images, K classes.
"""

from torch import Tensor

from bigvit.models.output import Output
from bigvit.objectives.classification import binary_cross_entropy, cross_entropy, dense
from bigvit.recipe import BinaryCrossEntropy, CrossEntropy, Objective

__all__ = ["dense", "loss", "name"]


def loss(objective: Objective, output: Output, targets: Tensor) -> Tensor:
    """The weighted loss of one objective, a float32 scalar. Targets: (B,) classes or (B, K)."""
    match objective:
        case BinaryCrossEntropy():
            value = binary_cross_entropy(output.logits, targets, objective.threshold)
        case CrossEntropy():
            value = cross_entropy(output.logits, targets, objective.smoothing)
    return objective.weight * value


def name(objective: Objective) -> str:
    """What an objective is called in the log."""
    match objective:
        case BinaryCrossEntropy():
            return "binary_cross_entropy"
        case CrossEntropy():
            return "cross_entropy"
