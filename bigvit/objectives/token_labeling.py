"""Token labelling (arXiv:2104.10858, section 3.2): a label for each patch. In float32.

Shapes: B images, h x w patches, N = h w, K classes.
"""

from collections.abc import Sequence

from torch import Tensor

from bigvit.data.prepare import Targets
from bigvit.models.output import Output
from bigvit.objectives.classification import cross_entropy
from bigvit.objectives.objective import Objective
from bigvit.recipe import TokenLabeling


class OfPatches(Objective):
    """Cross-entropy of the patches' logits (B, N, K) with their labels (B, h, w, K)."""

    def __init__(self, objective: TokenLabeling) -> None:
        super().__init__("token_labeling", objective.weight)
        self.smoothing = objective.smoothing

    def forward(self, output: Output, targets: Targets, draws: Sequence[Tensor]) -> Tensor:
        assert output.dense is not None and targets.map is not None, "the recipe was checked"
        logits, shares = output.dense.flatten(0, 1), targets.map.flatten(0, 2)
        return cross_entropy(logits, shares, self.smoothing)
