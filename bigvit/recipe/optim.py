"""How weights are updated, as plain values. No torch here."""

import math
from dataclasses import dataclass

__all__ = ["AdamW", "Cosine", "Lamb", "Optimizer", "Schedule"]


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (arXiv:1711.05101)."""

    lr: float  # peak learning rate, for the recipe's own batch size; never rescaled
    betas: tuple[float, float]  # decay of the first and second moment
    eps: float  # added to the root of the second moment
    weight_decay: float  # of matrices; vectors, positions and class tokens are never decayed


@dataclass(frozen=True)
class Lamb:
    """LAMB (arXiv:1904.00962) as apex's FusedLAMB: decay inside the trust ratio, no trust ratio
    for parameters without decay."""

    lr: float  # peak learning rate, for the recipe's own batch size; never rescaled
    betas: tuple[float, float]  # decay of the first and second moment
    eps: float  # added to the root of the second moment
    weight_decay: float  # of matrices; vectors, positions and class tokens are never decayed


Optimizer = AdamW | Lamb


@dataclass(frozen=True)
class Cosine:
    """Linear warm-up, then a half cosine counted from the first update, as in timm."""

    epochs: int  # of training
    warmup_epochs: int  # of linear warm-up, part of `epochs`
    warmup_lr: float  # at the first update
    min_lr: float  # at the end

    def lr(self, peak: float, update: int, updates_per_epoch: int) -> float:
        """Learning rate of an update (0 is the first): nothing but this number decides it."""
        warmup = self.warmup_epochs * updates_per_epoch
        if update < warmup:
            return self.warmup_lr + (peak - self.warmup_lr) * update / warmup
        progress = update / (self.epochs * updates_per_epoch)
        return self.min_lr + 0.5 * (peak - self.min_lr) * (1 + math.cos(math.pi * progress))


Schedule = Cosine
