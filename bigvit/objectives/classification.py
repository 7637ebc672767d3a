"""Classification losses, computed in float32.

Shapes: B images, K classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def dense(targets: Tensor, classes: int) -> Tensor:
    """Targets as distributions: (B,) class numbers or (B, K) probabilities -> (B, K) float32."""
    if targets.ndim == 2:
        return targets.float()
    # not one_hot, which has the host look at the targets
    return (targets[:, None] == torch.arange(classes, device=targets.device)).float()


def binary_cross_entropy(logits: Tensor, targets: Tensor, threshold: float) -> Tensor:
    """One binary problem a class, averaged over batch and classes (DeiT III, section 6.2.1).

    Args:
        logits: (B, K).
        targets: (B,) class numbers or (B, K) probabilities; above `threshold` counts as 1.
    """
    positive = (dense(targets, logits.shape[1]) > threshold).float()
    return F.binary_cross_entropy_with_logits(logits.float(), positive)


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Cross-entropy with the targets, of which a share `smoothing` is spread over all classes.

    Args:
        logits: (B, K).
        targets: (B,) class numbers or (B, K) probabilities.
    """
    classes = logits.shape[1]
    smooth = dense(targets, classes) * (1 - smoothing) + smoothing / classes
    return -(smooth * torch.log_softmax(logits.float(), dim=1)).sum(dim=1).mean()
