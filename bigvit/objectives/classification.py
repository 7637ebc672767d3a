"""Classification losses, computed in float32.

Shapes: B images, K classes.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bigvit.data.prepare import Targets
from bigvit.models.output import Output
from bigvit.objectives.objective import Objective
from bigvit.recipe.objective import ClassWeights


class Classification(Objective):
    """A loss of the logits (B, K) and the targets (B, K)."""

    def __init__(
        self,
        name: str,
        weight: float,
        loss: Callable[..., Tensor],
        relabelled: bool = False,
        class_weights: ClassWeights | None = None,
    ) -> None:
        """Args:
        relabelled: whether the targets are what label maps say of the crops.
        class_weights: how much classes count; numbers are in the targets.
        """
        super().__init__(name, weight)
        self.loss, self.relabelled = loss, relabelled
        self.class_weights: ClassWeights | None = class_weights

    def forward(self, output: Output, targets: Targets, draws: Sequence[Tensor]) -> Tensor:
        shares = targets.crop if self.relabelled else targets.dense
        assert shares is not None, "the recipe was checked"
        if self.class_weights is None:
            return self.loss(output.logits, shares)
        return self.loss(output.logits, shares, weights=targets.weights[self.class_weights])


def binary_cross_entropy(
    logits: Tensor, targets: Tensor, threshold: float, weights: Tensor | None = None
) -> Tensor:
    """One binary problem a class, averaged over batch and classes (DeiT III, section 6.2.1).

    Args:
        logits: (B, K).
        targets: (B, K) probabilities; above `threshold` counts as 1.
        weights: (K,) of the terms of classes that count as 1.
    """
    positive = (targets > threshold).float()
    return F.binary_cross_entropy_with_logits(logits.float(), positive, pos_weight=weights)


def cross_entropy(
    logits: Tensor, targets: Tensor, smoothing: float, weights: Tensor | None = None
) -> Tensor:
    """Cross-entropy with the targets, of which a share `smoothing` is spread over all classes.

    Args:
        logits: (B, K).
        targets: (B, K) probabilities, float32.
        weights: (K,) of each class's terms.
    """
    smooth = targets * (1 - smoothing) + smoothing / logits.shape[1]
    smooth = smooth if weights is None else smooth * weights
    return -(smooth * torch.log_softmax(logits.float(), dim=1)).sum(dim=1).mean()
