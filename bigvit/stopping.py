"""Asking a run to stop: by a signal, a file, a time limit, or the end of what launched it. No torch
here, so that a rank listens before anything heavy is imported."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ONE = 5.0  # seconds within which signals are one request
LOOK = 1.0  # seconds between looks at the launchers
LAUNCHERS = (b"deepspeed", b"bigvit")  # what the command line of one holds


class StopRequest:
    """From now on a signal asks the run to stop, instead of ending the process.

    Only one that wants out by the keyboard has a second word: interrupted again after five seconds,
    the process ends at once.
    """

    def __init__(self) -> None:
        self.began, self.requested, self.looked = time.monotonic(), 0.0, 0.0
        self.launchers = list(_launchers())
        self.max_minutes: float | None = None
        self.asked_by_file: Callable[[], bool] = lambda: False
        for number in SIGNALS:
            signal.signal(number, self._request)

    def asked(self) -> bool:
        """Whether this process knows a reason to stop: the launcher may not live to send a signal,
        and its ranks must not go on without it."""
        now = time.monotonic()
        if now - self.looked > LOOK:
            self.looked = now
            minutes = (now - self.began) / 60
            late = self.max_minutes is not None and minutes >= self.max_minutes
            orphaned = any(start_of(process) != start for process, start in self.launchers)
            if late or orphaned or self.asked_by_file():
                self.requested = self.requested or now
        return bool(self.requested)

    def _request(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGINT and self.requested and now - self.requested > ONE:
            os._exit(130)
        self.requested = self.requested or now


class Process(NamedTuple):
    """A process, told from a later one of the same number by its start."""

    number: int
    start: str  # in clock ticks since the system's; "" where there is none


def start_of(process: int) -> str:
    """When a process started; "" where it has ended."""
    fields = _stat(process)
    return fields[19] if fields and fields[0] not in "ZX" else ""


def _launchers() -> Iterator[Process]:
    """The processes above this one, as far up as they are launchers."""
    process = os.getppid()
    while process > 1 and (fields := _stat(process)):
        try:
            command = Path(f"/proc/{process}/cmdline").read_bytes()
        except OSError:
            return
        if not any(name in command for name in LAUNCHERS):
            return
        yield Process(process, fields[19])
        process = int(fields[1])


def _stat(process: int) -> list[str]:
    """The fields of a process's stat file from its state on; none where it has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
