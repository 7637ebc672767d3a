"""How weights are updated, as plain values. No torch here."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from bigvit.recipe.bounds import (
    Bound,
    Decay,
    Epsilon,
    Length,
    LengthFrom0,
    PeakLr,
    Share,
    ShareBelow1,
)
from bigvit.recipe.muon import Muon

__all__ = [
    "SGD",
    "AdamW",
    "Cosine",
    "Lamb",
    "Optimizer",
    "Polynomial",
    "Rates",
    "Schedule",
    "Steps",
    "WarmupStableDecay",
]

Lr = Annotated[float, Bound(0.0, 1000.0)]


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (arXiv:1711.05101)."""

    lr: PeakLr  # peak learning rate, for the recipe's own batch size; never rescaled
    betas: ShareBelow1[tuple[float, float]]  # decay of the first and second moment
    eps: Epsilon  # added to the root of the second moment
    weight_decay: Decay[float]  # of matrices; vectors, positions and class tokens are never decayed
    weight_decay_end: Decay[float | None]  # that it goes to by half a cosine; None: it stays


@dataclass(frozen=True)
class Lamb:
    """LAMB (arXiv:1904.00962) as apex's FusedLAMB: decay inside the trust ratio, no trust ratio
    for parameters without decay."""

    lr: PeakLr  # peak learning rate, for the recipe's own batch size; never rescaled
    betas: ShareBelow1[tuple[float, float]]  # decay of the first and second moment
    eps: Epsilon  # added to the root of the second moment
    weight_decay: Decay[float]  # of matrices; vectors, positions and class tokens are never decayed


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum, as torch.optim.SGD has it: decay is added to the
    gradient, and momentum <- momentum x itself + gradient, without dampening."""

    lr: PeakLr  # peak learning rate, for the recipe's own batch size; never rescaled
    momentum: ShareBelow1[float]  # share of the sum of gradients that stays from update to update
    nesterov: bool  # whether a step looks ahead: the gradient, and the momentum's share beside it
    weight_decay: Decay[float]  # of matrices; vectors, positions and class tokens are never decayed


Optimizer = AdamW | Lamb | Muon | SGD


class Rates(NamedTuple):
    """What an optimizer is told of one update: what depends on nothing but its number."""

    lr: float  # before a group's own share of it
    weight_decay: float | None = None  # of what is decayed; None: what each group has
    ema: float | None = None  # decay of the weights' average; None: what the optimizer has
    held: bool = False  # whether what objectives hold back at first (`Objective.held`) stands still


def half_cosine(first: float, last: float, progress: float) -> float:
    """From the first value (progress 0) to the last (1)."""
    return last + 0.5 * (first - last) * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Cosine:
    """Linear warm-up, then a half cosine counted from the first update, as in timm."""

    epochs: Length[int]  # of training
    warmup_epochs: LengthFrom0[int]  # of linear warm-up, part of `epochs`
    warmup_lr: Lr  # at the first update
    min_lr: Lr  # at the end

    def lr(self, peak: float, update: int, updates_per_epoch: int) -> float:
        """Learning rate of an update (0 is the first): nothing but this number decides it."""
        warmup = self.warmup_epochs * updates_per_epoch
        if update < warmup:
            return self.warmup_lr + (peak - self.warmup_lr) * update / warmup
        progress = update / (self.epochs * updates_per_epoch)
        return self.min_lr + 0.5 * (peak - self.min_lr) * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class WarmupStableDecay:
    """Linear warm-up, a constant learning rate, and its decay at the end (MiniCPM,
    arXiv:2404.06395, section 4.2; Haegele et al., arXiv:2405.18392, section 3).

    Until the decay begins no rate depends on `epochs`: a run goes on with more of them from a
    checkpoint before it, as if they had been planned. The decay is the two forms of Haegele et al.,
    whose "1-sqrt" ends lower at the same length; they find a fifth of the training enough.
    """

    epochs: Length[int]  # of training
    warmup_epochs: LengthFrom0[int]  # of linear warm-up, part of `epochs`
    warmup_lr: Lr  # at the first update
    decay_epochs: LengthFrom0[int]  # of the decay, the last ones of `epochs`
    # of what lies above min_lr, after a share s of the decay: 1 - s is left, or 1 - sqrt(s)
    decay: Literal["linear", "1-sqrt"]
    min_lr: Lr  # at the end

    def lr(self, peak: float, update: int, updates_per_epoch: int) -> float:
        """Learning rate of an update (0 is the first): nothing but this number decides it."""
        warmup = self.warmup_epochs * updates_per_epoch
        if update < warmup:
            return self.warmup_lr + (peak - self.warmup_lr) * update / warmup
        start = (self.epochs - self.decay_epochs) * updates_per_epoch
        if update <= start:
            return peak
        gone = (update - start) / (self.decay_epochs * updates_per_epoch)
        left = 1 - (gone if self.decay == "linear" else math.sqrt(gone))
        return self.min_lr + (peak - self.min_lr) * left


@dataclass(frozen=True)
class Polynomial:
    """A power of the share that is left, and a linear warm-up that it is multiplied by; counted in
    updates (mmcv's `poly` with `warmup="linear"`, which segmentation is trained by)."""

    updates: Length[int]  # of training
    warmup_updates: LengthFrom0[int]  # of linear warm-up, part of `updates`
    warmup_ratio: Share[float]  # of the rate, at the first update
    power: Annotated[float, Bound(0.0, 100.0)]
    min_lr: Lr  # at the end

    def lr(self, peak: float, update: int, updates_per_epoch: int) -> float:
        """Learning rate of an update (0 is the first): nothing but this number decides it."""
        left = max(0.0, 1 - update / self.updates)
        rate = self.min_lr + (peak - self.min_lr) * left**self.power
        return rate * _warmed(update, self.warmup_updates, self.warmup_ratio)


@dataclass(frozen=True)
class Steps:
    """Linear warm-up by updates, and a factor at the end of some epochs (mmdetection's schedules:
    3x is 36 epochs with steps after 27 and 33)."""

    epochs: Length[int]  # of training
    warmup_updates: LengthFrom0[int]  # of linear warm-up
    warmup_ratio: Share[float]  # of the rate, at the first update
    steps: Length[tuple[int, ...]]  # epochs after which the rate is multiplied
    factor: Share[float]

    def lr(self, peak: float, update: int, updates_per_epoch: int) -> float:
        """Learning rate of an update (0 is the first): nothing but this number decides it."""
        rate = peak * self.factor ** sum(update >= each * updates_per_epoch for each in self.steps)
        return rate * _warmed(update, self.warmup_updates, self.warmup_ratio)


def _warmed(update: int, warmup: int, first: float) -> float:
    """Share of the rate, rising linearly over the first `warmup` updates (mmcv)."""
    return 1 - (1 - update / warmup) * (1 - first) if update < warmup else 1.0


Schedule = Cosine | WarmupStableDecay | Polynomial | Steps
