"""How a run went in numbers: its best, its pace, its time. No torch here."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import NamedTuple

from bigvit.checkpoint import metrics
from bigvit.checkpoint.metrics import Line
from bigvit.report.told import Told, begins, number

RECENT = 20  # update lines that tell the pace now


class Best(NamedTuple):
    """The best evaluation."""

    value: float  # percent
    epoch: float
    update: int


@dataclass(frozen=True)
class Pace:
    """Of the updates that were logged. Shares are of the time in training."""

    images: int  # trained on
    seconds: float  # in training, without evaluations and saving at the end
    device_seconds: float
    images_per_second: float  # median
    slowest: float  # of ten lines, the slowest
    waiting: float
    teacher: float | None
    flops_use: float | None
    images_per_core_second: float | None


def best(told: Told, before: str = "") -> Best | None:
    """The evaluation with the highest top-1, or what the run measures instead; the first of equals.

    Args:
        before: the name of what is measured: "ema_" for the average of the weights.
    """
    key = before + told.measure
    found = [
        Best(value, told.epoch(line), line.update)
        for line in told.evaluations
        if (value := number(line, key)) is not None
    ]
    return max(found, key=lambda each: each.value, default=None)


def pace(told: Told) -> Pace | None:
    """How fast it was; None where nothing was logged, or the recipe is not known."""
    size = told.values.get("batch_size")
    if type(size) is not int:
        return None
    images, seconds, device_seconds, waiting = 0, 0.0, 0.0, 0.0
    teacher = list[float]()
    rates: list[float] = []
    since = 0
    for line in told.lines:
        rate = number(line, "images_per_second") if line.kind == metrics.UPDATE else None
        if rate is not None and rate > 0 and line.batch > since:
            done = (line.batch - since) * size
            spent = done / rate
            images, seconds = images + done, seconds + spent
            device_seconds += spent * world_at(told, line.batch)
            waiting += spent * (number(line, "waiting") or 0.0)
            if (share := number(line, "teacher")) is not None:
                teacher.append(spent * share)
            rates.append(rate)
        since = max(since, line.batch)
    if not rates:
        return None
    ordered = sorted(rates)
    return Pace(
        *(images, seconds, device_seconds, median(rates), ordered[len(rates) // 10]),
        waiting=waiting / seconds,
        teacher=sum(teacher) / seconds if teacher else None,
        flops_use=_median(told.updates, "flops_use"),
        images_per_core_second=_median(told.updates, "images_per_core_second"),
    )


def _median(lines: Sequence[Line], key: str) -> float | None:
    found = [value for line in lines if (value := number(line, key)) is not None]
    return median(found) if found else None


def world_at(told: Told, batch: int) -> int:
    """The ranks of the job that trained on a batch."""
    world = told.described.get("world")
    for job in told.jobs:
        if (begins(job) or 0) < batch and type(job.start.get("world")) is int:
            world = job.start["world"]
    return world if type(world) is int else 1


def left(told: Told) -> float | None:
    """Seconds that are left at the pace of the last lines; None where nobody knows."""
    if told.recipe is None or told.state not in ("running", "starting"):
        return None
    rate = _median(told.updates[-RECENT:], "images_per_second")
    return (told.recipe.updates - told.batch) * told.recipe.batch_size / rate if rate else None


def elapsed(told: Told) -> float | None:
    """Seconds from the first job's start, or the first line, to the last that is told of."""
    times = [line.time for line in told.lines] + [str(told.status.get("time"))]
    times += [str(each.get("time")) for job in told.jobs for each in job if each]
    found: list[float] = []
    for text in times:
        try:
            found.append(datetime.fromisoformat(text or "").timestamp())
        except ValueError:
            continue
    return max(found) - min(found) if len(found) > 1 else None
