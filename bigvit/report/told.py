"""What a run folder tells, read as far as that goes: a run may go on, have failed at once, or have
damaged files. No torch here."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bigvit.checkpoint import jobs, metrics
from bigvit.checkpoint.manifest import (
    Damaged,
    batch_of,
    checkpoints_in,
    damage,
    read_manifest,
)
from bigvit.checkpoint.metrics import Line
from bigvit.checkpoint.run import checkpoints_of
from bigvit.recipe import Recipe
from bigvit.recipe.store import filled, recipe_from_json
from bigvit.recipe.words import read_json
from bigvit.training.run_folder import status_of

SAID = ("recipe.json", "status.json", metrics.NAME)
ENDED = {"requeue": "it was stopped", "error": "an error", "killed": "it was killed"}
# what evaluations are told apart by, and how that is said
MEASURES = {"top1": "top-1", "miou": "mIoU", "box_ap": "box AP"}
MOST = 20  # names that are shown of a list in a file


@dataclass(frozen=True)
class Saved:
    """A checkpoint."""

    batch: int
    bytes: int
    fault: str  # what is damaged; nothing where it is whole


@dataclass(frozen=True)
class Told:
    """A run folder's files."""

    path: Path
    name: str  # different for each of several
    status: dict[str, Any]
    described: dict[str, Any]  # recipe.json
    faults: tuple[str, ...]  # files that could not be read, and why
    lines: tuple[Line, ...]
    damaged_lines: int
    jobs: tuple[jobs.Job, ...]
    saved: tuple[Saved, ...]
    index: dict[str, Any] | None  # what the data were, as the newest whole checkpoint says

    @property
    def state(self) -> str:
        """running, done, requeue, error, killed, starting or unknown."""
        return str(self.status.get("state", "unknown"))

    @cached_property
    def values(self) -> dict[str, Any]:
        """The recipe as JSON; empty where it is not known."""
        value = self.described.get("recipe")
        return filled(value) if isinstance(value, dict) else {}

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe, if this bigvit knows all of it."""
        try:
            return recipe_from_json(self.described.get("recipe"))
        except ValueError:
            return None

    @cached_property
    def updates(self) -> list[Line]:
        """Lines of updates."""
        return [line for line in self.lines if line.kind == metrics.UPDATE]

    @cached_property
    def evaluations(self) -> list[Line]:
        """Lines of evaluations."""
        return [line for line in self.lines if line.kind == metrics.EVALUATION]

    @cached_property
    def measure(self) -> str:
        """The first of `MEASURES` that its evaluations have."""
        here = (key for key in MEASURES if any(key in each.values for each in self.evaluations))
        return next(here, "top1")

    @cached_property
    def planned(self) -> list[Line]:
        """Lines that compare what was planned with what was measured."""
        return [line for line in self.lines if line.kind == metrics.PLANNED]

    @cached_property
    def batch(self) -> int:
        """The last place that is told of."""
        places = [line.batch for line in self.lines] + [each.batch for each in self.saved]
        update = self.status.get("update")
        return max([*places, update if type(update) is int else 0])

    def epoch(self, line: Line) -> float:
        """Where a line stands, in epochs; in updates where nobody knows these."""
        return line.epoch if line.epoch is not None else self.epoch_at(line.batch)

    def epoch_at(self, batch: int) -> float:
        """Where a batch stands, likewise."""
        for line in reversed(self.lines):
            if line.epoch and line.batch:
                return batch * line.epoch / line.batch
        if self.recipe is not None and self.recipe.updates_per_epoch:
            return batch / self.recipe.updates_per_epoch
        return float(batch)

    def curve(
        self, lines: Sequence[Line], of: Callable[[Line], float | None]
    ) -> tuple[list[float], list[float]]:
        """Epochs and values, where there are some."""
        pairs = sorted((self.epoch(line), y) for line in lines if (y := of(line)) is not None)
        return [x for x, _ in pairs], [y for _, y in pairs]

    def restarts(self) -> Iterator[tuple[float, str]]:
        """Epochs at which a job went on, and why it had to."""
        for before, job in zip(self.jobs, self.jobs[1:], strict=False):
            batch = begins(job)
            if batch is not None:
                state = str(before.end.get("state", "killed"))
                why = ENDED.get(state, f"it ended ({state})")
                yield self.epoch_at(batch), f"went on from batch {batch:,}, after {why}"


def begins(job: jobs.Job) -> int | None:
    """The batch of the checkpoint that a job went on from; None where it began anew."""
    path = job.start.get("begins")
    if not isinstance(path, str):
        return None
    try:
        return batch_of(Path(path))
    except ValueError:
        return None


def number(line: Line, *keys: str) -> float | None:
    """A finite number of a line, inside of others where several keys are given."""
    value: Any = line.values
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    if type(value) not in (int, float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def read_run(path: Path, name: str) -> Told:
    """Read a run folder.

    Raises:
        ValueError: it is no run folder.
    """
    faults: list[str] = []
    try:
        status = status_of(path)
    except ValueError as error:
        if not any((path / said).is_file() for said in SAID):
            raise
        status, faults = {"state": "unknown"}, [str(error)]
    described: dict[str, Any] = {}
    if (file := path / "recipe.json").exists():
        try:
            described = read_json(file)
            if not isinstance(described, dict):
                raise ValueError("it is no object")
        except (OSError, ValueError) as error:
            described, faults = {}, [*faults, f"{file} is damaged ({error})"]
    lines, damaged = _lines(path / metrics.NAME)
    if damaged:
        faults.append(f"{damaged} damaged {'line' if damaged == 1 else 'lines'} of {metrics.NAME}")
    saved = tuple(_saved(path))
    return Told(
        *(path, name, status, described, tuple(faults), lines, damaged),
        *(tuple(jobs.read_jobs(path)), saved, _index(path, saved)),
    )


def _lines(file: Path) -> tuple[tuple[Line, ...], int]:
    """The lines that are whole, and how many are not; the last may be on its way."""
    if not file.is_file():
        return (), 0
    lines = tuple(metrics.read_metrics(file))
    with file.open(errors="replace") as opened:
        texts = [text for text in opened if text.strip()]
    going_on = bool(texts) and not texts[-1].endswith("\n")
    return lines, max(0, len(texts) - len(lines) - going_on)


def _checkpoints(path: Path) -> list[Path]:
    """A run's checkpoints; all that lie there, where it cannot be read which count."""
    try:
        return checkpoints_of(path)
    except ValueError:  # `skipped_batches` says it
        return checkpoints_in(path / "checkpoints")


def _saved(path: Path) -> Iterator[Saved]:
    for checkpoint in _checkpoints(path):
        try:
            size = sum(file.stat().st_size for file in checkpoint.iterdir())
            yield Saved(batch_of(checkpoint), size, damage(checkpoint) or "")
        except OSError:
            continue  # it was pruned meanwhile


def _index(path: Path, saved: Sequence[Saved]) -> dict[str, Any] | None:
    whole = [each.batch for each in saved if not each.fault]
    for checkpoint in reversed(_checkpoints(path)):
        if batch_of(checkpoint) in whole:
            try:
                return read_manifest(checkpoint).data
            except (Damaged, OSError):
                continue
    return None


def listed(file: Path) -> tuple[list[str], int]:
    """The first lines of a file of names, and how many there are; none where it is not there."""
    try:
        names = file.read_text(errors="replace").splitlines()
    except OSError:
        return [], 0
    return names[:MOST], len(names)


def distinct(paths: Sequence[Path]) -> list[str]:
    """Names of run folders: more of the path where two end alike."""
    found = [path.resolve() for path in paths]
    parts = 1
    while True:
        names = ["/".join(path.parts[-parts:]) for path in found]
        if len(set(names)) == len(names) or parts > max(len(path.parts) for path in found):
            return names
        parts += 1
