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


class Classification(Objective):
    """A loss of the logits (B, K) and the targets (B, K)."""

    def __init__(
        self,
        name: str,
        weight: float,
        loss: Callable[[Tensor, Tensor], Tensor],
        relabelled: bool = False,
    ) -> None:
        """Args: relabelled: whether the targets are what label maps say of the crops."""
        super().__init__(name, weight)
        self.loss, self.relabelled = loss, relabelled

    def forward(self, output: Output, targets: Targets, draws: Sequence[Tensor]) -> Tensor:
        shares = targets.crop if self.relabelled else targets.dense
        assert shares is not None, "the recipe was checked"
        return self.loss(output.logits, shares)


def binary_cross_entropy(logits: Tensor, targets: Tensor, threshold: float) -> Tensor:
    """One binary problem a class, averaged over batch and classes (DeiT III, section 6.2.1).

    Args:
        logits: (B, K).
        targets: (B, K) probabilities; above `threshold` counts as 1.
    """
    positive = (targets > threshold).float()
    return F.binary_cross_entropy_with_logits(logits.float(), positive)


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Cross-entropy with the targets, of which a share `smoothing` is spread over all classes.

    Args:
        logits: (B, K).
        targets: (B, K) probabilities, float32.
    """
    smooth = targets * (1 - smoothing) + smoothing / logits.shape[1]
    return -(smooth * torch.log_softmax(logits.float(), dim=1)).sum(dim=1).mean()
