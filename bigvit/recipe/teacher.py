"""A trained model that a student learns from. No torch here."""

from dataclasses import dataclass
from typing import Literal

from bigvit.recipe.data import Mean, Std
from bigvit.recipe.depth import ImageSize
from bigvit.recipe.models import Model

__all__ = ["Teacher"]


@dataclass(frozen=True)
class Teacher:
    """A model that sees the student's mixed images, in evaluation mode, and is never changed.

    Its weights are given by `--teacher`; what the recipe says is how it is asked.
    """

    model: Model  # its drop_path counts for nothing
    image_size: ImageSize  # what it is fed, pixels: the side of a square, or (height, width)
    mean: Mean  # a channel's mean, of values in [0, 1], that it was trained with
    std: Std  # a channel's standard deviation, likewise
    precision: Literal["fp32", "bf16"]  # of its weights and what it computes; logits are float32
