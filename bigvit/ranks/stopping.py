"""Asking a run to stop: by a signal, a file, a time limit, or the end of what launched it. No torch
here, so that a rank listens before anything heavy is imported."""

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from types import FrameType

import psutil

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
PASSED_ON = {signal.SIGRTMIN + number: number for number in SIGNALS}
"""By which signal `bigvit launch` passes one on to its ranks: it says which one came, and ends no
rank that only starts, as it is ignored until a rank listens."""
ONE = 5.0  # seconds within which signals are one request
ORPHANED = "its launcher ended"
LOOK = 1.0  # seconds between looks at the launchers
LAUNCHERS = ("deepspeed", "bigvit", "torchrun", "torch.distributed.run", "accelerate")
"""What the command line of one holds."""
LOCAL = "deepspeed.launcher.launch"  # what that of `deepspeed`'s own launcher on a host holds
RANKS = ("CROSS_RANK", "TORCHELASTIC_RUN_ID")  # variables that it, and torchrun, give to ranks
PR_SET_PDEATHSIG = 1  # of Linux's prctl(2)
SSH = "@notty"  # what that of sshd's session holds which pdsh opened


class StopRequest:
    """From now on a signal asks the run to stop, instead of ending the process.

    Only one that wants out by the keyboard has a second word: interrupted again after five seconds,
    the process ends at once.
    """

    def __init__(self) -> None:
        self.began, self.requested, self.looked = time.monotonic(), 0.0, 0.0
        self.reason = ""  # of the first request that this process knows
        # the processes above this one, as far up as they are launchers
        self.launchers = list(takewhile(_launches, psutil.Process().parents()))
        self.too_late = _is_left(self.launchers)
        top = self.launchers[-1].parent() if self.launchers else None
        self.by_ssh = top is not None and SSH in _command(top)
        self.max_minutes: float | None = None
        self.asked_by_file: Callable[[], bool] = lambda: False
        for number in (*SIGNALS, *PASSED_ON):
            signal.signal(number, self._request)

    def asked(self) -> bool:
        """Whether this process knows a reason to stop: the launcher may not live to send a signal,
        and its ranks must not go on without it."""
        now = time.monotonic()
        if now - self.looked > LOOK:
            self.looked = now
            minutes = (now - self.began) / 60
            if self.max_minutes is not None and minutes >= self.max_minutes:
                self._take(f"--max-minutes {self.max_minutes:g}")
            elif self.orphaned():
                self._take(ORPHANED)
            elif self.asked_by_file():
                self._take("bigvit stop")
        return bool(self.requested)

    def orphaned(self) -> bool:
        """Whether what launched this process has ended."""
        ended = self.too_late or not all(map(lives, self.launchers))
        return ended or self.by_ssh and _nobody_reads()

    def _take(self, reason: str) -> None:
        self.requested = self.requested or time.monotonic()
        self.reason = self.reason or reason

    def _request(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGINT and self.requested and now - self.requested > ONE:
            os._exit(130)
        self._take(signal.Signals(PASSED_ON.get(number, number)).name)


def die_with_parent() -> None:
    """From now on the kernel ends this process by SIGKILL when what started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _command(process: psutil.Process) -> str:
    """Its command line, or nothing where it is gone."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _launches(process: psutil.Process) -> bool:
    return any(name in _command(process) for name in LAUNCHERS)


def _is_left(launchers: Sequence[psutil.Process]) -> bool:
    """Whether a launcher ended before this process looked: what it started went to
    the first process of all, as children do that are left."""
    if not launchers:
        return any(name in os.environ for name in RANKS) and os.getppid() == 1
    try:
        return launchers[-1].ppid() == 1 and LOCAL in " ".join(launchers[-1].cmdline())
    except psutil.Error:
        return True


def _nobody_reads() -> bool:
    """Whether the other end of the output is closed: sshd's session lives on when its client, the
    launcher on another host, has ended, but reads no more."""
    poll = select.poll()
    poll.register(1, 0)
    return bool(poll.poll(0))


def lives(process: psutil.Process) -> bool:
    """Whether a process, not another of the same number, still runs."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
