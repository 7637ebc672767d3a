"""`deepspeed` with signals that reach its ranks: its launchers pass on none, or only to some.

The launchers run in a session of their own, and ignore SIGUSR1. Whatever signal comes here is sent
to every rank as that one, again and again until they have left: a rank that is only starting may
miss it. With a hostfile no rank may be here, and the stop file of the run folder asks them. What is
left running when the launcher has ended is asked to stop, and then killed.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import psutil

from bigvit.hosts import read_hostfile
from bigvit.stopping import SIGNALS

AGAIN = 1.0  # seconds between signals to the ranks
ALIVE = "-o ServerAliveInterval=15 -o ServerAliveCountMax=4"  # a dead host ends its ssh
OURS = f"bigvit launch, process {os.getpid()} on {socket.gethostname()}\n"  # in a stop file
GRACE = 60.0  # seconds that ranks have for their last checkpoint without a launcher


def launch(arguments: Sequence[str]) -> int:
    """Run `deepspeed ARGUMENTS` to its end, and return its exit code.

    Raises:
        ValueError: the hostfile is none. (DeepSpeed would train on this machine alone.)
    """
    stopping, file, hosts = False, None, _hostfile(arguments)
    if hosts is not None:
        read_hostfile(hosts)

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    for number in SIGNALS:
        signal.signal(number, stop)
    ssh = os.environ.get("PDSH_SSH_ARGS_APPEND", "")
    process = subprocess.Popen(
        [Path(sys.executable).with_name("deepspeed"), *arguments],
        env={**os.environ, "PDSH_SSH_ARGS_APPEND": f"{ssh} {ALIVE}".strip()},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
    )
    while process.poll() is None:
        if stopping:
            _ask(process.pid)
            if hosts is not None:
                file = file or _ask_all(arguments)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(AGAIN)
    _clear(process.pid)
    if file is not None and _said(file) == OURS:  # no rank took it: not for the next start
        file.unlink(missing_ok=True)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _script(arguments: Sequence[str]) -> int:
    """Where the script stands, behind `deepspeed`'s own options."""
    return next((i for i, word in enumerate(arguments) if word.endswith(".py")), len(arguments))


def _hostfile(arguments: Sequence[str]) -> Path | None:
    """The hostfile that is given, where ranks are started by ssh."""
    own = arguments[: _script(arguments)]
    for i, word in enumerate(own):
        if word in ("-H", "--hostfile") or word.startswith("--hostfile="):
            path = Path(word.partition("=")[2] or [*own, ""][i + 1])
            return None if "--no_ssh" in own else path
    return None


def _ask_all(arguments: Sequence[str]) -> Path | None:
    """Ask a run to stop where it is read on every host: in its folder, once that is there."""
    from bigvit.checkpoint.start import folder_of
    from bigvit.recipe.parse import parse

    with contextlib.suppress(ValueError, OSError):
        file = folder_of(parse(arguments[_script(arguments) + 1 :])) / "stop"
        if not file.exists():  # a person's own request stays theirs
            file.write_text(OURS)
        return file
    return None


def _said(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text()
    return ""


def _ask(session: int) -> None:
    """Ask the ranks of a session to stop."""
    for rank in _of(session, ranks=True):
        with contextlib.suppress(psutil.Error):
            rank.send_signal(signal.SIGUSR1)


def _clear(session: int) -> None:
    """Leave nothing of a session running."""
    deadline = time.monotonic() + GRACE
    while list(_of(session, ranks=True)) and time.monotonic() < deadline:
        _ask(session)
        time.sleep(AGAIN)
    for process in _of(session, ranks=False):
        with contextlib.suppress(psutil.Error):
            process.kill()


def _of(session: int, ranks: bool) -> Iterator[psutil.Process]:
    """The processes of a session; or those of them alone that are ranks or their data workers."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) != session or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if not ranks or "LOCAL_RANK" in process.environ():
                yield process
