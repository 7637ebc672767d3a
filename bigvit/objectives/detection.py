"""Mask R-CNN on a trunk's maps (arXiv:1703.06870)."""

from collections.abc import Sequence

from torch import Tensor

from bigvit import recipe
from bigvit.data.prepare import Targets
from bigvit.models.output import Output
from bigvit.objectives.objective import Objective
from bigvit.recipe import Recipe


class BoxesAndMasks(Objective):
    """What `recipe.MaskRCNN` says."""

    answers = True

    def __init__(self, objective: recipe.MaskRCNN, whole: Recipe) -> None:
        super().__init__("detection", objective.weight)
        raise NotImplementedError

    def forward(self, output: Output, targets: Targets, draws: Sequence[Tensor]) -> Tensor:
        raise NotImplementedError

    def answer(self, output: Output, size: tuple[int, int]) -> dict[str, Tensor]:
        raise NotImplementedError
