"""What is written beside a run, and only watches it: a write that fails ends nothing."""

from collections import deque
from collections.abc import Callable

KEPT = 1000  # writes that wait, at most, for a file that can be written again

Write = Callable[[], object]


class Beside:
    """Writes what only watches: where that fails it is said once, and made up for as soon as it
    works again, in the order in which it was wanted."""

    def __init__(self, report: Callable[[str], None]) -> None:
        """Args: report: told what cannot be written, and that it can be again."""
        self.report = report
        self.waiting: dict[str, deque[Write]] = {}

    def write(self, what: str, write: Write, kept: int = KEPT) -> None:
        """Write, or leave it for the next time.

        Args:
            what: is written, as a person knows it.
            write: does so, all or nothing; called again where it raised.
            kept: writes that are left at most: 1 where the newest says it all.
        """
        queue = self.waiting.setdefault(what, deque(maxlen=kept))
        known = bool(queue)
        queue.append(write)
        self._catch_up(what, known)

    def close(self) -> None:
        """Try once more what is left, and say what stays unwritten."""
        for what, queue in self.waiting.items():
            if queue and not self._catch_up(what, known=True):
                self.report(f"warning: {what} could not be written to the end")

    def _catch_up(self, what: str, known: bool) -> bool:
        queue = self.waiting[what]
        try:
            while queue:
                queue[0]()
                queue.popleft()
        except Exception as error:  # whatever it is, training goes on
            if not known:
                self.report(
                    f"warning: {what} cannot be written for now ({error}); training goes on"
                )
            return False
        if known:
            self.report(f"{what} is written again")
        return True
