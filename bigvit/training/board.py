# pyright: reportAttributeAccessIssue=false
"""Numbers for TensorBoard, each line of them written at once and whole.

TensorBoard's own writers (torch's SummaryWriter is made of one) write from a thread: where that
fails, the thread dies, and whatever is asked of the writer later raises or waits for it.
"""

import io
import itertools
import os
import platform
import time
from collections.abc import Iterable
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from bigvit.checkpoint.files import append

COUNT = itertools.count()  # files of one process and second have names of their own


class Board:
    """A run's event files."""

    def __init__(self, folder: Path, first: int) -> None:
        """
        Args:
            first: step from which on an earlier job's numbers are not shown any more.
        """
        self.folder = folder
        self.file: Path | None = None  # none is begun, or the last one may end in a torn event
        self.start: list[Event] = [_event(step=first, session_log=SessionLog(status="START"))]

    def add(self, values: Iterable[tuple[str, float]], step: int, when: float) -> None:
        """Write numbers by their names.

        Args:
            when: in seconds, as `time.time()`.

        Raises:
            OSError: they are not written, and may be again.
        """
        named = [Summary.Value(tag=tag, simple_value=value) for tag, value in values]
        events = [_event(step=step, when=when, summary=Summary(value=[value])) for value in named]
        file, self.file = self.file, None
        if file is None:
            name = f"events.out.tfevents.{time.time():010.0f}.{platform.node()}.{os.getpid()}"
            file = self.folder / f"{name}.{next(COUNT)}"
            events = [_event(file_version="brain.Event:2"), *self.start, *events]
            self.folder.mkdir(parents=True, exist_ok=True)
        append(file, _records(events))
        self.file, self.start = file, []


def _event(when: float | None = None, **content: object) -> Event:
    return Event(wall_time=time.time() if when is None else when, **content)


def _records(events: Iterable[Event]) -> bytes:
    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    for event in events:
        writer.write(event.SerializeToString())
    return buffer.getvalue()
