"""Dynamic loss scaling for fp16.

Ours, not DeepSpeed's: when its scale grows it divides that update's gradient by the new scale,
which the gradient was not computed with, and so halves it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bigvit.engines.engine import GRADIENT, NotFinite, not_finite

INITIAL = 2.0**16
WINDOW = 1000
LARGEST = 2.0**24


@dataclass
class LossScale:
    """The factor of the loss whose gradient is computed: halved where that overflows, doubled
    after `WINDOW` updates in a row that did not."""

    enabled: bool
    scale: float = 1.0
    good: int = 0  # updates since the scale changed

    def __post_init__(self) -> None:
        if self.enabled and self.scale == 1:
            self.scale = INITIAL

    def scalars(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"loss_scale": self.scale, "good_updates": self.good} if self.enabled else {}

    def take(self, scalars: dict[str, Any]) -> None:
        """Go on from a checkpoint's; one of another precision has nothing to go on from."""
        if self.enabled and "loss_scale" in scalars:
            self.scale, self.good = scalars["loss_scale"], scalars["good_updates"]

    def succeeded(self) -> None:
        """A gradient was finite."""
        self.good += self.enabled
        if self.good == WINDOW:
            self.scale, self.good = min(2 * self.scale, LARGEST), 0

    def overflowed(self, losses: Mapping[str, Tensor]) -> None:
        """A gradient was not finite: its batch is skipped in fp16, where that is no fault.

        Args:
            losses: of that update, by name.

        Raises:
            NotFinite: a loss is not finite; the precision has no loss scale; or it cannot fall
                any further, so the fault lies elsewhere.
        """
        if error := not_finite({name: float(loss) for name, loss in losses.items()}):
            raise error
        if not self.enabled:
            raise NotFinite(GRADIENT)
        if self.scale <= 1:
            raise NotFinite(
                "the gradient overflows fp16 even at a loss scale of 1; the update was not "
                "applied. Use --precision bf16, a lower learning rate, or look for a fault in "
                "the data"
            )
        self.scale, self.good = self.scale / 2, 0
