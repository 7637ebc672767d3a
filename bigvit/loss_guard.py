"""Stop a run whose loss jumps, before the update that would spoil its weights."""

from collections import deque

MEMORY = 50  # losses that the mean is over


class LossJumped(Exception):
    """A loss is far above those before it; raised on every rank alike."""


class LossGuard:
    """Compares each loss with the mean of those before it, from the tenth update on."""

    def __init__(self, jump: float) -> None:
        """Args: jump: the multiple of the mean at which to stop."""
        self.jump = jump
        self.losses: deque[float] = deque(maxlen=MEMORY)

    def __call__(self, loss: float) -> None:
        """Look at the loss of an update that is not applied yet.

        Raises:
            LossJumped: it is too high.
        """
        mean = sum(self.losses) / max(1, len(self.losses))
        if len(self.losses) >= 10 and loss > self.jump * mean:
            raise LossJumped(
                f"the loss is {loss:.4g}, more than {self.jump:g} times the mean of the last "
                f"{len(self.losses)}, {mean:.4g} (--loss-jump); the update was not applied"
            )
        self.losses.append(loss)
