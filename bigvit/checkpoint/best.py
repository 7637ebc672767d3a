"""Which of a run's evaluations was the best, as metrics.jsonl has them. No torch here."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, get_args

from bigvit.checkpoint import metrics
from bigvit.recipe.run import Metric
from bigvit.recipe.words import read_json

SUFFIX = "@best"  # behind a run folder: its best checkpoint instead of the newest


class Scored(NamedTuple):
    """An evaluation by one metric."""

    batch: int  # global batches consumed by then
    value: float


def scores(run: Path, metric: str) -> list[Scored]:
    """A run's evaluations so far, in their order."""
    found: dict[int, float] = {}
    if (run / metrics.NAME).is_file():
        for line in metrics.read_kind(run / metrics.NAME, metrics.EVALUATION):
            value = line.values.get(metric)
            if isinstance(value, int | float):
                found[line.batch] = float(value)
    return [Scored(*each) for each in sorted(found.items())]


def ranked(scored: Iterable[Scored], metric: str) -> list[Scored]:
    """The best first; of equal ones the earlier."""
    sign = 1 if metric.endswith("loss") else -1

    def key(each: Scored) -> tuple[bool, float, int]:
        return not math.isfinite(each.value), sign * each.value, each.batch

    return sorted(scored, key=key)


def since_best(scored: Iterable[Scored], metric: str) -> int:
    """How many evaluations came after the best one, without being better."""
    there = sorted(scored)
    return len(there) - 1 - there.index(ranked(there, metric)[0]) if there else 0


def metric_of(run: Path) -> str | None:
    """What a run keeps its best checkpoint by, as its last start was told."""
    try:
        found = read_json(run / "recipe.json")["run"]["keep_best"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found in get_args(Metric) else None
