"""Stop a run whose loss jumps, before the update that would spoil its weights."""

import math
from collections import deque
from collections.abc import Sequence

MEMORY = 50  # losses that the mean is over
LEAST = 10  # losses that it needs


class LossJumped(Exception):
    """A loss is far above those before it; raised on every rank alike."""

    def __init__(self, said: str, loss: float = math.nan) -> None:
        super().__init__(said)
        self.loss = loss


class LossGuard:
    """Compares each loss with the mean of those before it, once it knows ten."""

    def __init__(self, jump: float, before: Sequence[float] = ()) -> None:
        """
        Args:
            jump: the multiple of the mean at which to stop.
            before: the losses that it knew where the run was stopped.
        """
        self.jump = jump
        self.losses = deque(before, maxlen=MEMORY)

    def __call__(self, loss: float) -> None:
        """Look at the loss of an update that is not applied yet. One that is not finite is left to
        the engine.

        Raises:
            LossJumped: it is too high.
        """
        if not math.isfinite(loss):
            return
        mean = sum(self.losses) / max(1, len(self.losses))
        if len(self.losses) >= LEAST and loss > self.jump * mean:
            raise LossJumped(
                f"the loss is {loss:.4g}, more than {self.jump:g} times the mean of the last "
                f"{len(self.losses)}, {mean:.4g} (--loss-jump); the update was not applied",
                loss,
            )
        self.losses.append(loss)

    def rising(self) -> int:
        """How many of the last losses belong to a jump that comes now: the unbroken row of those
        above the square root of `jump` times the mean of what was before, half of the way there as
        ratios go. At least ten are never part of it."""
        losses, row = list(self.losses), 0
        while len(losses) > LEAST:
            last = losses.pop()
            if last <= math.sqrt(self.jump) * sum(losses) / len(losses):
                break
            row += 1
        return row
