"""What is minimised: the sum of the objectives' weighted losses. No torch here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """One binary problem a class, averaged over batch and classes (DeiT III, section 6.2.1)."""

    weight: float  # factor of this loss in the sum
    threshold: float  # a target above this is made 1, any other 0
    smoothing: float  # must be 0: smoothed, every class would be above the threshold


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy with the target distribution, averaged over the batch."""

    weight: float  # factor of this loss in the sum
    smoothing: float  # share of a target spread evenly over the classes, in [0, 1)


Objective = BinaryCrossEntropy | CrossEntropy
