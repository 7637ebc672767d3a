"""How far a run has come, from what its folder says. No torch here, and quick: of metrics.jsonl the
end is read, and the lines of evaluations."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

from bigvit.checkpoint import metrics
from bigvit.checkpoint.best import Scored, metric_of, ranked, scores
from bigvit.checkpoint.skipped import read_skipped, said
from bigvit.recipe.run import Metric
from bigvit.recipe.words import read_json
from bigvit.training.run_folder import GOING_ON, status_of

MEASURED = tuple(name for name in get_args(Metric) if not name.startswith("ema_"))
RECENT = 5  # logged updates whose median rate is taken


@dataclass(frozen=True)
class Standing:
    """What a run does, and how far it has come. None: it does not say."""

    run: str
    status: dict[str, Any]  # status.json
    batch: int  # global batches consumed, as far as is logged
    updates: int | None  # that the training has, skipped ones included
    epoch: float | None
    epochs: int | None
    images_per_second: float | None
    left: float | None  # seconds, of a run that goes on
    loss: float | None  # of the last logged update
    lr: float | None
    last: dict[str, float]  # of the last evaluation, by metric
    metric: str  # by which the best is meant
    best: Scored | None
    skipped: str  # in words; nothing where no batch was
    asked_to_stop: bool  # by `bigvit stop`, which no job has honoured yet

    @property
    def goes_on(self) -> bool:
        return self.status["state"] in GOING_ON

    @property
    def share(self) -> float | None:
        """Of the training that is done."""
        return self.batch / self.updates if self.updates else None

    def as_json(self) -> dict[str, Any]:
        """All of it; "best" with its batch."""
        best = None if self.best is None else self.best._asdict() | {"metric": self.metric}
        of = {key: value for key, value in asdict(self).items() if key not in ("status", "metric")}
        return {"run": self.run, **self.status, **of, "best": best}


def standing(path: Path) -> Standing:
    """Look at a run folder.

    Raises:
        ValueError: it is none, or has said nothing yet.
    """
    status, described = status_of(path), _described(path)
    file = path / metrics.NAME
    updates = list(metrics.read_end(file, metrics.UPDATE)) if file.is_file() else []
    newest = updates[-1] if updates else None
    evaluated = list(metrics.read_kind(file, metrics.EVALUATION)) if file.is_file() else []
    metric = metric_of(path) or _first(evaluated)
    scored = scores(path, metric) if file.is_file() else []
    batch = max([line.batch for line in [*updates[-1:], *evaluated[-1:]]], default=0)
    batch = max(batch, status["update"])
    total, epochs = _length(described, newest)
    rates = [line.values.get("images_per_second") for line in updates[-RECENT:]]
    rates = [rate for rate in rates if isinstance(rate, float) and rate > 0]
    rate, size = (
        sorted(rates)[len(rates) // 2] if rates else None,
        _of(described, "recipe", "batch_size"),
    )
    left = None
    if rate and total and isinstance(size, int) and status["state"] in GOING_ON:
        left = max(0, total - batch) * size / rate
    try:
        skipped = said(read_skipped(path))
    except ValueError as error:
        skipped = str(error)
    numbers = evaluated[-1].values if evaluated else {}
    return Standing(
        run=str(path),
        status=status,
        batch=batch,
        updates=total,
        epoch=batch * epochs / total if total and epochs else None,
        epochs=epochs,
        images_per_second=rate,
        left=left,
        loss=_number(newest, "loss"),
        lr=_number(newest, "lr"),
        last={key: numbers[key] for key in MEASURED if key in numbers},
        metric=metric,
        best=ranked(scored, metric)[0] if scored else None,
        skipped=skipped,
        asked_to_stop=(path / "stop").is_file(),
    )


def _first(evaluated: Sequence[metrics.Line]) -> str:
    """The first of the metrics that evaluations have."""
    return next((key for key in MEASURED if any(key in each.values for each in evaluated)), "top1")


def _described(path: Path) -> Any:
    try:
        return read_json(path / "recipe.json")
    except (OSError, ValueError):
        return None


def _of(value: Any, *keys: str) -> Any:
    """What lies below keys, if it is there."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _length(described: Any, newest: metrics.Line | None) -> tuple[int | None, int | None]:
    """Updates and epochs of the training; an older bigvit wrote the epochs alone."""
    epochs, total = _of(described, "recipe", "schedule", "epochs"), _of(described, "updates")
    if type(epochs) is not int:
        epochs = None
    if type(total) is not int:
        total = None
        if epochs and newest is not None and newest.epoch:
            total = epochs * round(newest.batch / newest.epoch)
    elif epochs is None and newest is not None and newest.epoch and newest.batch:
        epochs = math.ceil(total * newest.epoch / newest.batch)  # a schedule of updates
    return total, epochs


def _number(line: metrics.Line | None, key: str) -> float | None:
    value = None if line is None else line.values.get(key)
    return float(value) if isinstance(value, int | float) else None


COLUMNS = (
    *("state", "update", "exit_code", "of", "epoch", "images/s", "left", "loss", "best"),
    *("time", "host", "process", "skipped", "reason"),
)
"""Of the line that programs read: the first three stay where they are."""


def cells(found: Standing) -> list[str]:
    """A run's line below `COLUMNS`."""
    status = found.status
    rate, best = found.images_per_second, found.best
    values = {
        **{key: status.get(key) for key in COLUMNS},
        "of": found.updates,
        "epoch": None if found.epoch is None else f"{found.epoch:.4g}",
        "images/s": None if rate is None else f"{rate:.4g}",
        "left": None if found.left is None else _time(found.left).replace(" ", "_"),
        "loss": None if found.loss is None else f"{found.loss:.4f}",
        "best": None if best is None else f"{best.value:.2f}",
        "skipped": found.skipped,
    }
    return ["-" if values[key] in (None, "") else str(values[key]) for key in COLUMNS]


TABLE = ("run", "state", "update", "done", "left", "images/s", "loss", "best")


def row(found: Standing) -> list[str]:
    """A run's line among others, for a person."""
    share, rate, best = found.share, found.images_per_second, found.best
    return [
        found.run,
        found.status["state"],
        f"{found.batch:,}",
        "-" if share is None else f"{100 * share:.0f} %",
        "-" if found.left is None else _time(found.left),
        "-" if rate is None else f"{rate:,.0f}",
        "-" if found.loss is None else f"{found.loss:.4f}",
        "-" if best is None else f"{best.value:.2f} ({found.metric})",
    ]


def paragraph(found: Standing) -> list[str]:
    """The lines that say all of a run to a person."""
    status, of = found.status, found.updates
    first = f"{found.run}: {status['state']}"
    if status.get("exit_code"):
        first += f", exit code {status['exit_code']}"
    lines = [first + (f": {status['reason']}" if status.get("reason") else "")]
    counted = "batch" if found.skipped else "update"
    done = f"{counted} {found.batch:,}" + ("" if of is None else f" of {of:,}")
    if found.share is not None and found.epoch is not None:
        done += f", epoch {found.epoch:.4g} of {found.epochs} ({100 * found.share:.0f} %)"
    lines.append(done)
    if found.images_per_second is not None:
        pace = f"{found.images_per_second:,.0f} images/s"
        lines.append(pace + ("" if found.left is None else f", {_time(found.left)} left"))
    if found.loss is not None:
        rate = "" if found.lr is None else f", learning rate {found.lr:.2e}"
        lines.append(f"loss {found.loss:.4f}{rate}")
    if found.last:
        named = ", ".join(f"{key} {value:.4g}" for key, value in found.last.items())
        best = found.best
        also = "" if best is None else f"; best {found.metric} {best.value:.4g}"
        lines.append(f"test: {named}{also}" + (f" (update {best.batch:,})" if best else ""))
    if found.skipped:
        lines.append(found.skipped)
    if found.asked_to_stop:
        lines.append("it was asked to stop (bigvit stop), and has not yet")
    where = f", process {status['process']} on {status['host']}" if status.get("host") else ""
    if status.get("time"):
        lines.append(f"said at {status['time']}{where}")
    return [lines[0], *(f"  {line}" for line in lines[1:])]


def _time(seconds: float) -> str:
    """A time as hours, or days and hours."""
    return str(timedelta(seconds=round(seconds))).replace(" days, ", " d ").replace(" day, ", " d ")


def any_goes_on(found: Sequence[Standing]) -> bool:
    """Whether there is something left to watch."""
    return any(each.goes_on for each in found)
