"""The jobs that worked on a run, one after the other: when each began, on what, from which
checkpoint, and how it ended. A job that was killed says no end. No torch here.

jobs.jsonl, a line each:
{"kind": "start", "time": ..., "begins": ".../step_00000100", "world": 8, "versions": {...}, ...}
{"kind": "end", "time": ..., "state": "requeue", "update": 200, "exit_code": 85, "reason": ...}
"""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from bigvit.checkpoint.files import append

NAME = "jobs.jsonl"  # in a run folder
START, END = "start", "end"  # kinds of lines
TOGETHER = 10  # seconds within which several ranks tell that a job ended


class Job(NamedTuple):
    """A job: the line of its start (empty where it was over before that), and of its end (empty
    where it runs, or was killed)."""

    start: dict[str, Any]
    end: dict[str, Any]


def add(folder: Path, kind: str, said: Mapping[str, Any]) -> None:
    """Add a line.

    Raises:
        OSError: it cannot be written.
    """
    file, line = folder / NAME, f"{json.dumps({'kind': kind, **said})}\n"
    append(file, f"{chr(10) if _is_torn(file) else ''}{line}".encode())


def _is_torn(file: Path) -> bool:
    """Whether a file ends in mid-line, as a power cut leaves it."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - 1))
            return opened.read() not in (b"", b"\n")
    except FileNotFoundError:
        return False


def read_jobs(folder: Path) -> list[Job]:
    """The jobs of a run folder, the first one first; none where an older bigvit worked there alone.
    What is no whole line is left out. Several ranks may tell one end: the last of them counts."""
    found: list[Job] = []
    try:
        text = (folder / NAME).read_text(errors="replace")
    except FileNotFoundError:
        return found
    for said in map(_object, text.splitlines()):
        if said.get("kind") == START:
            found.append(Job(said, {}))
        elif said.get("kind") == END:
            if not found or found[-1].end and not _together(found[-1].end, said):
                found.append(Job({}, {}))
            found[-1] = found[-1]._replace(end=said)
    return found


def _object(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _together(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two ends are told within seconds."""
    try:
        first, last = (datetime.fromisoformat(each["time"]) for each in (one, other))
        return abs((last - first).total_seconds()) < TOGETHER
    except (KeyError, TypeError, ValueError):
        return True
