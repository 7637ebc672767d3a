"""A run folder: one job at a time, and what it tells the world. No torch here."""

import contextlib
import fcntl
import json
import os
import platform
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from bigvit.checkpoint.files import append, write_json
from bigvit.recipe import Command
from bigvit.recipe.store import to_json
from bigvit.recipe.words import read_json

State = Literal["running", "done", "requeue", "error"]
CLASSES = "classes.json"  # names of the classes, in a run folder
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
STARTED = time.time()  # about when this process did
PACKAGES = ("bigvit", "torch", "deepspeed", "timm", "numpy")


class RunFolder:
    """The open run folder of rank 0: locked until it is closed or the process ends, however that
    happens. The lock is the process's: opening and closing `lock` again would free it."""

    def __init__(self, path: Path, command: Command, world: int) -> None:
        """Make or reopen the folder.

        Raises:
            ValueError: another job uses it, or it cannot be written to.
        """
        self.path = path
        try:
            self._open(path, command, world)
        except OSError as error:
            raise ValueError(f"--run-dir {path} cannot be written to: {error}") from None

    def _open(self, path: Path, command: Command, world: int) -> None:
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        self.lock = (path / "lock").open("a+")
        try:
            fcntl.lockf(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.lock.seek(0)
            holder = self.lock.read().strip()
            self.lock.close()
            raise ValueError(
                f"--run-dir {path} is in use by another job ({holder}); "
                "wait for it, or choose another"
            ) from None
        self.lock.truncate(0)
        self.lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self.lock.flush()
        self._forget_stop(path / "stop")
        description = {
            "name": command.name,
            "recipe": to_json(command.recipe),
            "overrides": list(command.overrides),
            "run": {key: str(value) for key, value in asdict(command.run).items()},
            "world": world,
            "versions": {name: version(name) for name in PACKAGES}
            | {"python": sys.version.split()[0]},
            "git": _git_revision(),
        }
        write_json(path / "recipe.json", description)
        self.metrics = path / "metrics.jsonl"
        self.bad_images = path / "bad_images.txt"
        self.update = 0  # updates applied

    def _forget_stop(self, file: Path) -> None:
        """Remove what asked an earlier job to stop, but not what was meant for this one."""
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_mtime < STARTED:
                file.unlink()

    @property
    def asked_to_stop(self) -> bool:
        """Whether `bigvit stop` was called since this job opened the folder."""
        return (self.path / "stop").exists()

    def close(self) -> None:
        """Let another job have the folder."""
        with contextlib.suppress(OSError):
            (self.path / "stop").unlink(missing_ok=True)
            self.lock.close()

    def say(self, state: State, exit_code: int | None = None, reason: str = "") -> None:
        """Write status.json: what the run does, or why it ended."""
        value = {
            "state": state,
            "update": self.update,
            "exit_code": exit_code,
            "reason": reason,
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "host": platform.node(),
            "process": os.getpid(),
        }
        write_json(self.path / "status.json", value)

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
        kept = []
        for line in self.metrics.read_text(errors="replace").splitlines():
            try:
                values = json.loads(line)
                at = values.get("batch", values["update"])
                if at < batch or at == batch and not (evaluation_due and "top1" in values):
                    kept.append(line)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # a line that a killed process left half written
        aside = self.metrics.with_name(".metrics.aside")
        aside.write_text("".join(f"{line}\n" for line in kept))
        aside.rename(self.metrics)


def status_of(path: Path) -> dict[str, Any]:
    """What status.json of a run folder says; "killed" where it says "running" and no job has the
    folder any more.

    Raises:
        ValueError: it is no run folder, or the run has not said anything yet.
    """
    if not (path / "recipe.json").is_file():
        raise ValueError(f"{path} is not a run folder")
    try:
        status = read_json(path / "status.json")
        for key, kinds in STATUS.items():
            if key in status and type(status[key]) not in kinds:
                raise ValueError(f"{key} is {status[key]!r}")
        if status["state"] == "running" and not _is_locked(path / "lock"):
            status["state"] = "killed"
    except (OSError, ValueError, KeyError, TypeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} has no status yet, or status.json is damaged ({said})") from None
    return status


def class_names(path: Path, count: int) -> list[str] | None:
    """The names of a run's classes, where its folder says them.

    Raises:
        ValueError: the file there is damaged.
    """
    file = path / CLASSES
    if not file.exists():
        return None
    try:
        names = read_json(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is damaged ({error}); remove it, or mend it") from None
    if not isinstance(names, list) or not all(type(name) is str for name in names):
        raise ValueError(f"{file} is damaged: it is not a list of names; remove it, or mend it")
    if not len(set(names)) == len(names) <= count:
        raise ValueError(
            f"{file} is damaged: {len(set(names))} different names of {len(names)}, for {count} "
            "classes; remove it, or mend it"
        )
    return names


def _is_locked(file: Path) -> bool:
    """Whether another process holds a lock on a file; asking takes none."""
    with file.open("rb") as opened:
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        held = fcntl.fcntl(opened, fcntl.F_GETLK, asked)
    return struct.unpack(FLOCK, held)[0] != fcntl.F_UNLCK


def _git_revision() -> str | None:
    """The revision of the checkout that bigvit runs from, '+' behind it where it was changed."""
    here = Path(__file__).resolve().parent

    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *args], cwd=here, capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    revision = git("rev-parse", "HEAD")
    return revision and revision + ("+" if git("status", "--porcelain") else "")
