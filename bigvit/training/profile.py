"""A trace of three updates, by torch's profiler."""

from pathlib import Path

from torch.profiler import profile

from bigvit.training.progress import Progress

UPDATES = 3  # in a trace: the first may still compile or allocate


class Profile:
    """Writes RUN/profile/update_N.json.gz, which chrome://tracing and perfetto.dev show. Rank 0's
    alone: others do the same."""

    def __init__(self, first: int | None, folder: Path | None, progress: Progress) -> None:
        """Args:
        first: number of the first update in it; None for no trace.
        folder: the run's; None on other ranks.
        """
        self.first = first if folder is not None else None
        self.path = Path() if folder is None else folder / "profile" / f"update_{first}.json.gz"
        self.progress = progress
        self.running: profile | None = None

    def begins(self, update: int) -> None:
        """An update begins."""
        if self.first is None:
            return
        if update == self.first:
            self.running = profile()
            self.running.start()
        elif update == self.first + UPDATES:
            self.close()

    def close(self) -> None:
        """Write what there is of it."""
        if (trace := self.running) is not None:
            self.running = None
            trace.stop()
            self.progress.traced(self.path, trace.export_chrome_trace)
