"""What is minimised: the sum of the objectives' weighted losses. No torch here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Annotated, Literal

from bigvit.recipe.bounds import (
    Bound,
    LengthFrom0,
    Pairs,
    Share,
    ShareBelow1,
    Side,
    Temperature,
    Weight,
    Width,
)
from bigvit.recipe.detection import MaskRCNN
from bigvit.recipe.dino import Dino
from bigvit.recipe.grafit import Grafit
from bigvit.recipe.models.ops import Op, linear
from bigvit.recipe.segmentation import UperNet

__all__ = [
    "BinaryCrossEntropy",
    "CrossEntropy",
    "DRLoc",
    "Distillation",
    "HardDistillation",
    "Objective",
    "OfFeatures",
    "Ramp",
    "ReLabel",
    "SoftDistillation",
    "TokenLabeling",
]

Head = Literal["class", "distillation"]
ByFrequency = Literal[
    "inverse",
    "inverse sqrt",
    "effective 0.9",
    "effective 0.99",
    "effective 0.999",
    "effective 0.9999",
]
ClassWeights = ByFrequency | tuple[float, ...]
"""How much each class counts: by its number of training images n as 1 / n, 1 / sqrt(n), or one over
the effective number (1 - b^n) / (1 - b) with the b of Cui et al. (arXiv:1901.05555, section 4);
or a number for each class. `bigvit.data.class_weights` has their scale."""
OfClasses = Annotated[ClassWeights | None, Bound(0.0, 1e6)]


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """One binary problem a class, averaged over batch and classes (DeiT III, section 6.2.1).

    Class weights are torch's `pos_weight`: what an image says for its classes counts so much, what
    it says against the others is as before. (Cui et al. weight all of an image's problems by
    its class, of which a mixed image has two.)"""

    weight: Weight  # factor of this loss in the sum
    threshold: ShareBelow1[float]  # a target above this is made 1, any other 0
    smoothing: ShareBelow1[float]  # must be 0: smoothed, every class would be above the threshold
    class_weights: OfClasses  # of positives; None: all 1


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy with the target distribution, averaged over the batch.

    Class weights are the `weight` of torch's `cross_entropy` for targets that are distributions:
    each class's term counts so much, smoothing's too, and the sum is divided by the images, not by
    their weights. So it does not depend on how a batch is cut."""

    weight: Weight  # factor of this loss in the sum
    smoothing: ShareBelow1[float]  # share of a target spread evenly over the classes, in [0, 1)
    class_weights: OfClasses  # None: all 1


@dataclass(frozen=True)
class HardDistillation:
    """The teacher's part of equation 3.3 (thesis section 3.3; arXiv:2012.12877, equation 3):
    cross-entropy with the class that the teacher gives the most, averaged over the batch. The
    label's part is another objective, `CrossEntropy` with a weight of 1/2."""

    weight: Weight  # factor of this loss in the sum, 1/2 in the equation
    head: Head  # whose logits learn from the teacher


@dataclass(frozen=True)
class SoftDistillation:
    """The teacher's part of equation 3.2 (thesis section 3.3; arXiv:2012.12877, equation 2): tau^2
    times the Kullback-Leibler divergence of the student's softmax from the teacher's, both at
    temperature tau. The label's part is another objective, `CrossEntropy` with a weight of
    1 - lambda."""

    weight: Weight  # factor of this loss in the sum (lambda)
    tau: Temperature[float]  # that both logits are divided by
    # what the sum is divided by: images, or images times classes as in the authors' code
    mean: Literal["images", "images and classes"]
    head: Head  # whose logits learn from the teacher


Distillation = HardDistillation | SoftDistillation


@dataclass(frozen=True)
class TokenLabeling:
    """Cross-entropy of each patch's logits with a label of its own, averaged over patches and
    images (arXiv:2104.10858, section 3.2). The class token's is another objective: `CrossEntropy`
    with the true label, or `ReLabel`."""

    weight: Weight  # factor of this loss in the sum
    smoothing: ShareBelow1[float]  # share of a label spread evenly over the classes, in [0, 1)
    # map: what a label map says of what the patch shows; image: the label of the patch's image
    labels: Literal["map", "image"]


@dataclass(frozen=True)
class ReLabel:
    """Cross-entropy of the class token's logits with what a label map says of the whole crop,
    averaged over the batch (arXiv:2101.05022): in place of the true label."""

    weight: Weight  # factor of this loss in the sum
    smoothing: ShareBelow1[float]  # share of a label spread evenly over the classes, in [0, 1)


@dataclass(frozen=True)
class Ramp:
    """A loss's weight over the training: linearly from 0 to its whole, then to a share of it."""

    warmup_epochs: LengthFrom0[int]  # of the rise
    last: Share[float]  # share of the weight at the end of the training; 1 keeps it

    def factor(self, epoch: float, epochs: int) -> float:
        """Share of the weight after so many epochs, whole and begun ones, of all."""
        if epoch < self.warmup_epochs:
            return epoch / self.warmup_epochs
        rest = epochs - self.warmup_epochs
        return 1 - (1 - self.last) * (epoch - self.warmup_epochs) / rest if rest else 1.0


@dataclass(frozen=True)
class DRLoc:
    """Dense relative localization (arXiv:2106.03746): how far apart two tokens of an image lie,
    guessed by an MLP from both; averaged over pairs, the two axes, and images."""

    weight: Weight  # factor of this loss in the sum (lambda)
    ramp: Ramp | None  # how the weight rises and falls; None: constant
    offsets: Literal["absolute", "signed", "classes", "gaussian"]  # equations 1, 3, 5, 6
    unit: Literal["grid", "cells"]  # of absolute and signed offsets: the axis's cells, or one cell
    alpha: Weight  # weight of log sigma where offsets are gaussian
    blocks: Literal["last", "all"]  # all: an MLP and a loss for each block's tokens (equation 7)
    normalised: bool  # whether the last tokens are those after the last norm; blocks' never are
    # an image (m); None: every token once, its partner at random (equation 8)
    pairs: Pairs[int | None]
    grid: Side[int | None]  # side to which a longer axis of the grid is pooled; None: it is not
    pooling: Literal["mean", "overlapping"]  # overlapping: windows of 3 cells, 2 apart
    hidden_dim: Width[int]  # width of the MLP's hidden layers
    hidden_layers: Annotated[int, Bound(1, 1000)]  # of the MLP

    def pooled(self, grid: tuple[int, int]) -> tuple[int, int]:
        """The grid (down, across) that this loss sees of a model's."""
        side = self.grid
        if side is None:
            return grid
        if self.pooling == "overlapping":
            return ((grid[0] + 1) // 2, (grid[1] + 1) // 2) if max(grid) > side else grid
        return min(grid[0], side), min(grid[1], side)

    def pairs_of(self, grid: tuple[int, int]) -> int:
        """Pairs of an image on a grid that is pooled already."""
        return grid[0] * grid[1] if self.pairs is None else self.pairs

    def outputs(self, grid: tuple[int, int]) -> tuple[int, int]:
        """Outputs of the MLP for each axis of a grid that is pooled already."""
        if self.offsets in ("classes", "gaussian"):
            return 2 * grid[0] + 1, 2 * grid[1] + 1
        return 1, 1

    def ops(self, maps: Sequence[tuple[int, tuple[int, int]]]) -> Iterator[Op]:
        """What is computed of an image, all in float32, from width and grid of each block."""
        for width, grid in maps[0 if self.blocks == "all" else -1 :]:
            pooled = self.pooled(grid)
            pairs, outputs = self.pairs_of(pooled), self.outputs(pooled)
            cells = prod(pooled) + (pooled != grid) * prod(grid)
            yield Op("", "activation", 0, 0, 0, wide=cells * width + 4 * pairs)  # and their numbers
            widths = [2 * width, *[self.hidden_dim] * self.hidden_layers, sum(outputs)]
            for inputs, made in pairwise(widths):
                layer = linear("mlps.*.layers.*", pairs, inputs, made)
                yield layer._replace(kept=0, wide=layer.kept)
            # probabilities, their products with offsets and with squares of offsets; or the outputs
            terms = 3 if self.offsets == "gaussian" else 1
            yield Op("", "activation", 0, 0, 0, wide=terms * pairs * sum(outputs))


OfFeatures = DRLoc | Grafit | Dino | UperNet | MaskRCNN
"""Objectives that read a trunk's features, and no logits of the model's own head."""

Objective = (
    BinaryCrossEntropy
    | CrossEntropy
    | HardDistillation
    | SoftDistillation
    | TokenLabeling
    | ReLabel
    | OfFeatures
)
