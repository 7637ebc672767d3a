"""What the benchmarks share: interleaved timing, a ratio with its interval, and the table."""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000


class Ratio(NamedTuple):
    """A ratio of medians, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    what: str
    measured: str
    interval: str = ""
    goal: str = ""
    ok: bool | None = None  # None: no goal, shown for comparison


def arguments(what: str, **more: float | str) -> argparse.Namespace:
    """The options of every benchmark, small and check, and more of them by their defaults."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--small", action="store_true", help="a few seconds: figures mean nothing")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a goal is missed")
    for name, default in more.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser.parse_args()


def interleaved(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """Seconds that each run takes, A B A B ...; every second round backwards.

    Args:
        clock: CPU seconds of this process, if left out: on a shared machine they vary less than
            those on the wall, and on one thread they are the same thing.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(-warmup, rounds):
        for name in list(runs)[:: -1 if i % 2 else 1]:
            began = clock()
            runs[name]()
            if i >= 0:
                seconds[name].append(clock() - began)
    return seconds


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Ratio of two medians of the same rounds; the interval by resampling whole rounds."""
    pairs = np.array([above, below])
    drawn = np.random.default_rng(0).integers(pairs.shape[1], size=(RESAMPLES, pairs.shape[1]))
    top, bottom = np.median(pairs[:, drawn], axis=2)
    low, high = np.quantile(top / bottom, [0.025, 0.975])
    top, bottom = np.median(pairs, axis=1)
    return Ratio(float(top / bottom), float(low), float(high))


def report(title: str, rows: Sequence[Row], check: bool) -> int:
    """Print the table; the exit code: 1 where a goal is missed and `check` is on."""
    cells = [("what", "measured", "95 % interval", "goal", "ok")]
    for row in rows:
        ok = {None: "", True: "yes", False: "NO"}[row.ok]
        cells.append((row.what, row.measured, row.interval, row.goal, ok))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}\n")
    for i, line in enumerate(cells):
        print(" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
        if i == 0:
            print("-|-".join("-" * width for width in widths))
    return int(check and any(row.ok is False for row in rows))
