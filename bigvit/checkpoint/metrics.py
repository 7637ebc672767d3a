"""The lines of metrics.jsonl: how they are written, and the one reader of them. No torch here.

Each line is a JSON object with its `kind`, its `time`, its place (`batch`, `update`, `epoch`) and
what was measured there.
"""

import json
import os
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

TAIL = 1 << 18  # bytes
NAME = "metrics.jsonl"  # in a run folder
UPDATE, EVALUATION, PLANNED = "update", "evaluation", "planned"  # kinds of lines


class Line(NamedTuple):
    """A line of metrics.jsonl."""

    kind: str  # UPDATE, EVALUATION, PLANNED, or what only a later bigvit knows
    time: str | None  # when it was written (UTC, ISO 8601); None: by an older bigvit
    batch: int  # global batches consumed
    update: int  # updates applied
    epoch: float | None  # None: not said
    values: dict[str, Any]  # all that the line holds
    text: str  # as it stands in the file


def utc_now() -> str:
    """The time in UTC as ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def new_line(
    kind: str, batch: int, update: int, epoch: float, measured: Mapping[str, Any]
) -> dict[str, Any]:
    """What a line holds that is written now."""
    place = {"batch": batch, "update": update, "epoch": epoch}
    return {"kind": kind, "time": utc_now(), **place, **measured}


def read_metrics(path: Path) -> Iterator[Line]:
    """The lines of a metrics.jsonl in their order, one after the other as they are asked for.

    The file may grow meanwhile. What is no whole line is left out, such as one that is half
    written. Older lines without a kind and a batch are read as what they meant.
    """
    with path.open(errors="replace") as file:
        for text in file:
            if (line := _line(text.rstrip("\n"))) is not None:
                yield line
            if not text.endswith("\n"):
                return  # the file's end for now; what is added meanwhile begins amid a line


def read_kind(path: Path, kind: str) -> Iterator[Line]:
    """The lines of a kind, in their order; of the others none is read as JSON, so that the few
    evaluations of a long run are found at once."""
    mark = f'"{kind}"'.encode()
    old = b'"top1"' if kind == EVALUATION else mark  # lines that do not say their kind
    with path.open("rb") as file:
        for text in file:
            if (mark in text or old in text) and (
                line := _line(text.decode(errors="replace").rstrip("\n"))
            ) is not None:
                if line.kind == kind:
                    yield line


def read_end(path: Path, kind: str) -> Iterator[Line]:
    """The last lines of a kind, in their order: those in the last quarter of a megabyte."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        begin = max(0, end - TAIL)
        file.seek(begin)
        if begin:
            file.readline()
        for text in file:
            line = _line(text.decode(errors="replace").rstrip("\n"))
            if line is not None and line.kind == kind:
                yield line


def _line(text: str) -> Line | None:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    update, epoch, time = (values.get(key) for key in ("update", "epoch", "time"))
    batch = values.get("batch", update)
    kind = values.get("kind", EVALUATION if "top1" in values else UPDATE)
    if type(batch) is not int or type(update) is not int or type(kind) is not str:
        return None
    epoch, time = epoch if type(epoch) is float else None, time if type(time) is str else None
    return Line(kind, time, batch, update, epoch, values, text)
