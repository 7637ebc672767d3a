"""A run folder: one job at a time, and what it tells the world. No torch here."""

import fcntl
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from bigvit.checkpoint.files import write_json
from bigvit.checkpoint.manifest import STEP, Damaged, checkpoints_in, read_manifest
from bigvit.recipe import Command
from bigvit.recipe.store import differences, filled, to_json

State = Literal["running", "done", "requeue", "error"]
CLASSES = "classes.json"  # names of the classes, in a run folder
OURS = ("lock", "checkpoints", ".recipe.json.aside")  # there before recipe.json is
PACKAGES = ("bigvit", "torch", "deepspeed", "timm", "numpy")


def checkpoints_of(folder: Path) -> list[Path]:
    """A run's checkpoints, oldest first."""
    return checkpoints_in(folder / "checkpoints")


def run_of(checkpoint: Path) -> Path:
    """The run folder that a checkpoint lies in, if it was not copied elsewhere."""
    return checkpoint.resolve().parent.parent


def find_checkpoint(path: Path) -> Path:
    """The checkpoint at a path: the folder itself, or the newest one of a run folder.

    Raises:
        ValueError: there is none.
    """
    if STEP.fullmatch(path.name) and path.is_dir():
        return path
    if not path.is_dir():
        raise ValueError(f"there is no run folder or checkpoint {path}")
    if not (path / "recipe.json").is_file():
        raise ValueError(f"{path} is neither a run folder nor a checkpoint of bigvit")
    if not (found := checkpoints_of(path)):
        raise ValueError(f"{path} holds no checkpoint")
    return found[-1]


@dataclass(frozen=True)
class Start:
    """Where a run begins."""

    folder: Path  # the run folder
    checkpoint: Path | None  # what it goes on from; None: from the initial weights


def plan_start(command: Command) -> Start:
    """Decide where a run begins, changing nothing, so that every rank can.

    Raises:
        ValueError: the folder or checkpoint is not fit for this run; nothing was touched.
    """
    run, resume = command.run, command.run.resume
    checkpoint = None
    if resume not in (None, "auto"):
        checkpoint = find_checkpoint(Path(resume))
    home = run_of(checkpoint) if checkpoint else None
    if home and not (home / "recipe.json").is_file():
        home = None  # a checkpoint that was copied elsewhere
    folder = run.run_dir or home or Path("runs") / command.name
    recipe = to_json(command.recipe)
    if folder.exists():
        _refuse_foreign(folder, recipe)
        newest = checkpoints_of(folder)[-1:]
        holds_run = newest or (folder / "metrics.jsonl").exists()
        if holds_run and (resume is None or (checkpoint and home != folder.resolve())):
            raise ValueError(
                f"{folder} holds a run already; go on with it by --resume auto, "
                "or choose another --run-dir"
            )
        if resume == "auto" and newest:
            checkpoint = newest[0]
        if checkpoint and newest and checkpoint.name != newest[0].name:
            raise ValueError(
                f"{folder} holds newer checkpoints than {checkpoint.name}; go on from the newest "
                "by --resume auto, or branch off into another --run-dir"
            )
    if checkpoint:
        try:
            manifest = read_manifest(checkpoint)
        except Damaged as error:
            raise ValueError(f"--resume {resume}: {error}; {way_out(checkpoint)}") from None
        _refuse_changes(manifest.recipe, recipe, f"--resume {resume}: {checkpoint}")
        if (stop := run.stop_after) is not None and stop <= manifest.batch:
            raise ValueError(f"--stop-after {stop}: {checkpoint} is at {manifest.batch} already")
    if (stop := run.stop_after) is not None and stop > command.recipe.updates:
        raise ValueError(f"--stop-after {stop}: the recipe has {command.recipe.updates} updates")
    _refuse_unwritable(folder)
    return Start(folder, checkpoint)


def way_out(damaged: Path | None) -> str:
    """What to do about a checkpoint that is not whole."""
    return f"to go on from the one before it, move {damaged} out of the run folder"


def _refuse_foreign(folder: Path, recipe: dict[str, Any]) -> None:
    if not folder.is_dir():
        raise ValueError(f"--run-dir {folder}: it is not a folder")
    described = folder / "recipe.json"
    if not described.exists():
        if strangers := sorted(path.name for path in folder.iterdir() if path.name not in OURS):
            raise ValueError(
                f"--run-dir {folder}: it holds files that are not a run's ({strangers[0]}); "
                "choose another"
            )
        if checkpoints_of(folder):
            raise ValueError(
                f"--run-dir {folder}: it holds checkpoints but its recipe.json is missing; "
                "choose another"
            )
        return
    try:
        old = json.loads(described.read_text())["recipe"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"--run-dir {folder}: its recipe.json is damaged; choose another"
        ) from None
    _refuse_changes(old, recipe, f"--run-dir {folder}")


def _refuse_changes(old: dict[str, Any], new: dict[str, Any], where: str) -> None:
    if changes := list(differences(filled(old), new)):
        shown = "\n  ".join(changes[:12])
        raise ValueError(
            f"{where} holds a run of another recipe:\n  {shown}\n"
            "use the run's own recipe and overrides, or choose another --run-dir"
        )


def _refuse_unwritable(folder: Path) -> None:
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"--run-dir {folder}: {there} cannot be written to; choose another")


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
        (path / "stop").unlink(missing_ok=True)
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

    @property
    def asked_to_stop(self) -> bool:
        """Whether `bigvit stop` was called since this job opened the folder."""
        return (self.path / "stop").exists()

    def close(self) -> None:
        """Let another job have the folder."""
        self.lock.close()

    def take_up(self, batch: int, update: int) -> None:
        """The run goes on after this many global batches, of which as many as `update` were
        applied; log lines of later ones will be made again."""
        self.update = update
        self._forget_after(batch)
        self.say("running")

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
        with self.metrics.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def list_bad(self, names: Sequence[str]) -> int:
        """Add to bad_images.txt the names that are not in it, and say how many those are."""
        if not names:
            return 0
        known = set[str]()
        if self.bad_images.exists():
            known.update(self.bad_images.read_text().splitlines())
        new = [name for name in names if name not in known]
        with self.bad_images.open("a") as file:
            file.writelines(f"{name}\n" for name in new)
        return len(new)

    def _forget_after(self, batch: int) -> None:
        if not self.metrics.exists():
            return
        kept = []
        for line in self.metrics.read_text(errors="replace").splitlines():
            try:
                values = json.loads(line)
                if values.get("batch", values["update"]) <= batch:
                    kept.append(line)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # a line that a killed process left half written
        aside = self.metrics.with_name(".metrics.aside")
        aside.write_text("".join(f"{line}\n" for line in kept))
        aside.rename(self.metrics)


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
