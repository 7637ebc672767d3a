"""A run folder: one job at a time, and what it tells the world. No torch here."""

import contextlib
import errno
import fcntl
import json
import os
import platform
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bigvit.checkpoint import jobs, metrics
from bigvit.checkpoint.files import append, write_json
from bigvit.checkpoint.run import CLASSES_MAP
from bigvit.data.levels import read_map
from bigvit.recipe import Command
from bigvit.recipe.store import to_json
from bigvit.recipe.words import read_json

STATES = {None: "running", 0: "done", 85: "requeue"}
"""What a run's exit code means; any other is an error."""

STATUS = {
    "state": (str,),
    "update": (int,),
    "exit_code": (int, type(None)),
    "reason": (str,),
    "time": (str, type(None)),
    "host": (str, type(None)),
    "process": (int, type(None)),
}
"""What status.json holds, and of which types."""

FLOCK = "hhqqi0q"  # Linux's struct flock: type, whence, start, length, process
TAKEN = (errno.EAGAIN, errno.EACCES)  # from a lock that another holds; all else: there are none
GOING_ON = ("starting", "running")  # states of a job that has the folder
STOPPED = "bigvit stop"  # the reason of a job that honours such a request
# in a run folder before recipe.json is: of jobs that are starting, or died while they did
OURS = (
    *("lock", "checkpoints", "status.json", "stop", jobs.NAME),
    *(".recipe.json.aside", ".status.json.aside"),
)
PACKAGES = ("bigvit", "torch", "deepspeed", "timm", "numpy")


class RunFolder:
    """The open run folder of rank 0: locked until it is closed or the process ends, however that
    happens. The lock is the process's: opening and closing `lock` again would free it.

    Nothing but the lock, and why a job ended, is written before the run is accepted.
    """

    def __init__(self, path: Path, command: Command, world: int) -> None:
        """Lock the folder, which is made where it is not there.

        Raises:
            ValueError: another job uses it, it cannot be locked, or it cannot be written to.
        """
        self.path, self.command, self.world = path, command, world
        self.metrics = path / metrics.NAME
        self.bad_images = path / "bad_images.txt"
        self.accepted, self.why = False, ""  # why it is done, where that is before the recipe's end
        self.began = time.monotonic()
        self._made: list[Path] = []  # what was not there before, to be removed if it is refused
        self._saying = threading.Lock()
        try:
            while not self._open(path / "lock"):
                pass
        except OSError as error:
            raise ValueError(f"--run-dir {path} cannot be written to: {error}") from None
        self.state, self.update = "", 0  # as was said last, at first by the job before; applied
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            before = read_json(path / "status.json")
            self.state, self.update = str(before["state"]), int(before["update"])

    def _open(self, file: Path) -> bool:
        """Lock the folder; false where a job that was refused removed the file meanwhile."""
        for folder in reversed((self.path, *self.path.parents)):
            if not folder.exists():
                folder.mkdir(exist_ok=True)
                self._made.append(folder)
        if not file.exists():
            self._made.append(file)
        try:
            self.lock = file.open("a+")
        except FileNotFoundError:
            return False
        self._lock()
        try:
            same = os.path.samestat(os.fstat(self.lock.fileno()), file.stat())
        except FileNotFoundError:
            same = False
        if not same:
            self.lock.close()
            return False
        self.lock.truncate(0)
        self.lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self.lock.flush()
        return True

    def _lock(self) -> None:
        try:
            fcntl.lockf(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.lock.seek(0)
            holder = self.lock.read().strip()
            if error.errno in TAKEN:
                self.lock.close()
                raise ValueError(
                    f"--run-dir {self.path} is in use by another job ({holder}); "
                    "wait for it, or choose another"
                ) from None
            if self.command.run.lock:
                self.close()
                raise ValueError(
                    f"--run-dir {self.path}: its file system has no locks ({error.strerror}), so "
                    "that nothing keeps a second job out; where you see to that, go on by --no-lock"
                ) from None

    @property
    def asked_to_stop(self) -> bool:
        """Whether `bigvit stop` was called, and no job has honoured that yet."""
        return (self.path / "stop").is_file()

    def close(self) -> None:
        """Let another job have the folder. Where the run was refused, it is as it was before."""
        if not self.accepted:
            for made in reversed(self._made):
                with contextlib.suppress(OSError):  # a folder that holds why the job ended
                    made.rmdir() if made.is_dir() else made.unlink()
        with contextlib.suppress(OSError):
            self.lock.close()

    def accept(
        self, given: Mapping[str, str] = MappingProxyType({}), begins: Path | None = None
    ) -> None:
        """Every check has passed: describe what is run, and list the job that runs it.

        Args:
            given: digests of what it was given beside its recipe: "teacher", "label_maps".
            begins: the checkpoint that it goes on from, if from one.
        """
        command, checkpoints = self.command, self.path / "checkpoints"
        if not checkpoints.exists():
            checkpoints.mkdir()
            self._made.append(checkpoints)
        description = {
            "name": command.name,
            "recipe": to_json(command.recipe),
            **given,
            "updates": command.recipe.updates,
            "overrides": list(command.overrides),
            "run": {key: str(value) for key, value in asdict(command.run).items()}
            | {"sharding": command.run.arrangement},
            "world": self.world,
            "versions": {name: version(name) for name in PACKAGES}
            | {"python": sys.version.split()[0]},
            "git": _git_revision(),
        }
        if command.run.classes_map is not None:
            write_json(self.path / CLASSES_MAP, read_map(command.run.classes_map))
        write_json(self.path / "recipe.json", description)
        start = {
            "begins": None if begins is None else str(begins),
            "last_update": self.update,  # that the job before told
            **{key: description[key] for key in ("overrides", "world", "versions", "git")},
        }
        jobs.add(self.path, jobs.START, self._where | start)
        self.accepted = True

    def write_status(self, exit_code: int | None = None, reason: str = "") -> None:
        """Write status.json: that the run goes on, or why it ended. A request to stop that was
        honoured, or came when all was done, is forgotten."""
        self.state = STATES.get(exit_code, "error")
        value = {
            "state": self.state,
            "update": self.update,
            "exit_code": exit_code,
            "reason": reason,
            **self._where,
        }
        with self._saying:  # the thread that watches other ranks may have something to say, too
            write_json(self.path / "status.json", value)
            if exit_code is not None:
                with contextlib.suppress(OSError):  # of a disk that is full: status.json has it
                    jobs.add(self.path, jobs.END, value)
        if self.state == "done" or self.state == "requeue" and reason.startswith(STOPPED):
            with contextlib.suppress(OSError):  # it is said in any case
                (self.path / "stop").unlink()

    @property
    def _where(self) -> dict[str, Any]:
        return {"time": metrics.utc_now(), "host": platform.node(), "process": os.getpid()}

    def log(self, line: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        append(self.metrics, f"{json.dumps(line)}\n".encode())

    def list_bad(self, names: Sequence[str]) -> int:
        """Add to bad_images.txt the names that are not in it, and say how many those are."""
        if not names:
            return 0
        known = set[str]()
        if self.bad_images.exists():
            known.update(self.bad_images.read_text().splitlines())
        new = [name for name in names if name not in known]
        append(self.bad_images, "".join(f"{name}\n" for name in new).encode())
        return len(new)

    def forget_after(self, batch: int, evaluation_due: bool = False) -> None:
        """The run goes on after this many global batches: log lines of what comes after will be
        made again, that of an evaluation at this batch included where it is due."""
        if not self.metrics.exists():
            return
        aside = self.metrics.with_name(".metrics.aside")
        with aside.open("w") as file:
            for line in metrics.read_metrics(self.metrics):
                remade = evaluation_due and line.kind == metrics.EVALUATION
                if line.batch < batch or line.batch == batch and not remade:
                    file.write(f"{line.text}\n")
        aside.rename(self.metrics)


def status_of(path: Path) -> dict[str, Any]:
    """What status.json of a run folder says; "killed" where it says "running" and no job has the
    folder any more. "starting", or "killed", where no job has said anything yet.

    Raises:
        ValueError: it is no run folder, or the run has not said anything yet.
    """
    lock, said = path / "lock", path / "status.json"
    if not said.is_file() and not (path / "recipe.json").is_file():
        if not lock.is_file() or {file.name for file in path.iterdir()} - set(OURS):
            raise ValueError(f"{path} is not a run folder")
    try:
        status: dict[str, Any] = {"state": "starting", "update": 0, "reason": ""}
        status |= dict.fromkeys(("exit_code", "time", "host", "process"))
        if said.is_file():
            status = read_json(said)
        for key, kinds in STATUS.items():
            if key in status and type(status[key]) not in kinds:
                raise ValueError(f"{key} is {status[key]!r}")
        if status["state"] in GOING_ON and not _is_locked(lock):
            status["state"] = "killed"
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} has no status yet, or status.json is damaged ({what})") from None
    return status


def ask_to_stop(path: Path) -> str:
    """Ask the job that has a run folder to stop, or else the next that opens it; says which.

    Raises:
        ValueError: it is no run folder, or the run is done.
    """
    state = status_of(path)["state"]
    if state == "done":
        raise ValueError(f"{path} is done; there is nothing to stop")
    (path / "stop").touch()
    if state in GOING_ON:
        return f"{path} will stop after its next update; `bigvit status` says when it has"
    return (
        f"{path} is not running ({state}): its next start will stop at once, before an update; "
        f"to take that back, remove {path / 'stop'}"
    )


def _is_locked(file: Path) -> bool:
    """Whether another process holds a lock on a file; asking takes none. Where there are no locks,
    what status.json says is all there is."""
    with file.open("rb") as opened:
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            held = fcntl.fcntl(opened, fcntl.F_GETLK, asked)
        except OSError:
            return True
    return struct.unpack(FLOCK, held)[0] != fcntl.F_UNLCK


def _git_revision() -> str | None:
    """The revision of the checkout that bigvit runs from, '+' behind it where it was changed."""
    here = Path(__file__).resolve().parent

    ask = partial(subprocess.run, cwd=here, capture_output=True, text=True, timeout=10, check=True)
    revision = None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        revision = ask(["git", "rev-parse", "HEAD"]).stdout.strip()
        revision += "+" * bool(ask(["git", "status", "--porcelain"]).stdout)
    return revision
