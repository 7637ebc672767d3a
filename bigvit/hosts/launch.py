"""`deepspeed` with signals that reach its ranks: its launchers pass on none, or only to some.

The launchers run in a session of their own and end with this process. A signal that comes here is
passed on to every rank by one that stands for it (`PASSED_ON`), which launchers, and ranks that are
only starting, ignore: so again and again until they have left. With a hostfile no rank may be here,
and the stop file of the run folder asks them. What is left running when the launcher has ended is
asked to stop, and then killed.

Nothing is imported from the current folder, where `deepspeed` looks first: by `python -m`, and on
other hosts by PYTHONPATH. `--module` alone needs it; and `python -m` of Python 3.10 still looks.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from types import FrameType

import psutil

from bigvit.hosts.hostfile import check_host, import_path, in_files, read_hostfile
from bigvit.ranks.launched import free_port
from bigvit.ranks.stopping import PASSED_ON, SIGNALS, die_with_parent

AGAIN = 1.0  # seconds between signals to the ranks
ALIVE = "-o ServerAliveInterval=15 -o ServerAliveCountMax=4"  # a dead host ends its ssh
OURS = f"bigvit launch, process {os.getpid()} on {socket.gethostname()}\n"  # in a stop file
PLAIN = re.compile(r"[\w@+=:,./-]+")  # what pdsh and a shell leave as it is
SAID = (0, 2, 3, 85)  # exit codes whose reason the run has said
GRACE = 60.0  # seconds that ranks have for their last checkpoint without a launcher


def launch(arguments: Sequence[str]) -> int:
    """Run `deepspeed ARGUMENTS` to its end, and return its exit code.

    Raises:
        ValueError: the hostfile is none (DeepSpeed would train on this machine alone), or hosts
            would not be given what stands here.
    """
    file: Path | None = None
    asked, own = 0, arguments[: _script(arguments)]
    hostfile, master = _value(own, "-H", "--hostfile"), _value(own, "--master_addr")
    if hostfile is not None:
        read_hostfile(Path(hostfile))
    if master is not None:
        check_host(master, "--master_addr")
    hosts = hostfile is not None and "--no_ssh" not in own
    if hosts:
        _check_words(arguments)

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = asked or number

    for number in SIGNALS:
        signal.signal(number, stop)
    with _environment(arguments, hosts) as variables:
        process = subprocess.Popen(
            [*_launcher(), *_quietly(own), *arguments],
            env=variables,
            start_new_session=True,
            preexec_fn=_as_launcher,
        )
        while process.poll() is None:
            if asked:
                _ask(process.pid, asked)
                if hosts:
                    file = file or _ask_all(arguments)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(AGAIN)
    if process.returncode not in SAID:
        print(f"error: a rank ended with code {process.returncode}", file=sys.stderr, flush=True)
    _clear(process.pid, asked or signal.SIGTERM)
    with contextlib.suppress(OSError):
        if file is not None and file.read_text() == OURS:  # no rank took it: not for the next start
            file.unlink()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _as_launcher() -> None:
    """In `deepspeed`'s process, before it is one. It ends with this one, however that ends: ranks
    that only start later find out by it."""
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()


def train_here(words: Sequence[str], ranks: int) -> int:
    """Train on this machine, and return the exit code.

    Args:
        words: a recipe and its options, as `scripts/train.py` takes them.
        ranks: processes, as `ranks_here` counts them.
    """
    launcher = ["--num_accelerators", str(ranks), "--master_port", str(free_port())]
    return launch([*launcher, str(Path(__file__).parents[1] / "scripts" / "train.py"), *words])


def ranks_here(engine: str, asked: int | None) -> int:
    """Ranks of a training on this machine: what is asked for, or one a device."""
    found = devices()
    if not found:  # else DeepSpeed's launchers look for one, and warn that there is none
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if asked is not None:
        return asked
    return 1 if engine == "single" else max(1, found)


def devices() -> int:
    """Accelerators that are here."""
    import torch

    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def _launcher() -> list[str]:
    """DeepSpeed's own, which stands beside this Python as a rule."""
    beside = Path(sys.executable).with_name("deepspeed")
    module = [sys.executable, "-m", "deepspeed.launcher.runner"]
    return [str(beside)] if beside.exists() else module


def _quietly(own: Sequence[str]) -> list[str]:
    """Options of `deepspeed`, by which it tells neither its settings nor, as an error, that a run
    was stopped on request; nothing where something is asked of its log."""
    asked = any(word in ("-q", "--quiet") or word.startswith("--log") for word in own)
    return [] if asked else ["--log_level=critical"]


def _script(arguments: Sequence[str]) -> int:
    """Where the script stands, behind `deepspeed`'s own options."""
    return next((i for i, word in enumerate(arguments) if word.endswith(".py")), len(arguments))


def _value(own: Sequence[str], *names: str) -> str | None:
    """What is given for an option of `deepspeed` by one of its names, the last of which may be cut
    short; of several the last counts, as there."""
    found = None
    for word, following in zip_longest(own, own[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if name in names or len(name) > 3 and names[-1].startswith(name):
            found = value if equals else following
    return found


def _check_words(arguments: Sequence[str]) -> None:
    """Refuse what would become something else in the command lines of other hosts' shells."""
    garbled = [word for word in arguments if not PLAIN.fullmatch(word.replace(" ", ""))]
    garbled += [] if PLAIN.fullmatch(here := os.getcwd()) else [here]
    if garbled:
        raise ValueError(
            f"{garbled[0]!r}: DeepSpeed puts it into the command lines of other hosts unquoted, "
            "and their shells would read it as something else; use letters, digits and @+=:,./-_ "
            "(blanks are quoted, but not in the name of the current folder)"
        )


@contextlib.contextmanager
def _environment(arguments: Sequence[str], hosts: bool) -> Iterator[dict[str, str]]:
    """The launcher's variables, by which nothing is imported from the current folder, here and on
    the hosts: they are told so by a file beside those that DeepSpeed reads, for this while."""
    ssh = os.environ.get("PDSH_SSH_ARGS_APPEND", "")
    variables = {**os.environ, "PDSH_SSH_ARGS_APPEND": f"{ssh} {ALIVE}".strip()}
    at = _script(arguments)
    if at == len(arguments) or "--module" in arguments[:at]:
        yield variables
        return
    given = in_files() if hosts else {}
    path = import_path(given.get("PYTHONPATH") or os.environ.get("PYTHONPATH", ""))
    # what PYTHONSAFEPATH takes from ranks is given back: modules beside their script
    path = ":".join(filter(None, (str(Path(arguments[at]).absolute().parent), path)))
    variables |= {"PYTHONSAFEPATH": "1", "PYTHONPATH": path}
    if not hosts:
        yield variables
        return
    with tempfile.NamedTemporaryFile("w", prefix="bigvit", suffix=".env") as file:  # mode 0600
        given["PYTHONPATH"] = path
        file.writelines(f"{name}={value}\n" for name, value in given.items())
        file.flush()
        yield {**variables, "DS_ENV_FILE": file.name}


def _ask_all(arguments: Sequence[str]) -> Path | None:
    """Ask a run to stop where it is read on every host: in its folder, once that is there."""
    from bigvit.recipe.parse import parse
    from bigvit.training.start import folder_of

    with contextlib.suppress(ValueError, OSError):
        file = folder_of(parse(arguments[_script(arguments) + 1 :])) / "stop"
        if not file.exists():  # a person's own request stays theirs
            file.write_text(OURS)
        return file
    return None


def _ask(session: int, asked: int) -> None:
    """Ask the ranks of a session to stop, by the signal that stands for one."""
    passed = next(number for number, stands_for in PASSED_ON.items() if stands_for == asked)
    for rank in _of(session, ranks=True):
        with contextlib.suppress(psutil.Error):
            rank.send_signal(passed)


def _clear(session: int, asked: int) -> None:
    """Leave nothing of a session running: ask as by a signal, and kill."""
    deadline = time.monotonic() + GRACE
    while list(_of(session, ranks=True)) and time.monotonic() < deadline:
        _ask(session, asked)
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
