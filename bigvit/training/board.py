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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from bigvit.checkpoint.files import append

TRAIN, TEST = "train", "test"  # folders of the curves, below the run's
# files of one process and second have names of their own, in their order: readers sort them
COUNT = itertools.count()


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

    def describe(self, name: str, values: Mapping[str, Any], shown: Iterable[str]) -> None:
        """Write a run's hyper-parameters, to be compared with those of others, with what its curves
        in `TEST` show last.

        Args:
            name: of the run.
            values: by their paths: numbers, texts, true or false.
            shown: of the test images, beside the hyper-parameters: names of curves.

        Raises:
            OSError: they are not written, and may be again.
        """
        named = api_pb2.MetricName
        metrics = [api_pb2.MetricInfo(name=named(group=TEST, tag=tag)) for tag in shown]
        infos = [api_pb2.HParamInfo(name=key, type=_kind(value)) for key, value in values.items()]
        started = plugin_data_pb2.SessionStartInfo(group_name=name, start_time_secs=time.time())
        for key, value in values.items():
            field = {
                api_pb2.DATA_TYPE_BOOL: "bool_value",
                api_pb2.DATA_TYPE_FLOAT64: "number_value",
            }
            setattr(started.hparams[key], field.get(_kind(value), "string_value"), value)
        experiment = api_pb2.Experiment(hparam_infos=infos, metric_infos=metrics)
        self._append(
            _event(summary=Summary(value=[_plugin_value(tag, **content)]))
            for tag, content in (
                (metadata.EXPERIMENT_TAG, {"experiment": experiment}),
                (metadata.SESSION_START_INFO_TAG, {"session_start_info": started}),
            )
        )

    def add(self, values: Iterable[tuple[str, float]], step: int, when: float) -> None:
        """Write numbers by their names.

        Args:
            when: in seconds, as `time.time()`.

        Raises:
            OSError: they are not written, and may be again.
        """
        named = [Summary.Value(tag=tag, simple_value=value) for tag, value in values]
        events = [_event(step=step, when=when, summary=Summary(value=[value])) for value in named]
        self._append(events)

    def _append(self, new: Iterable[Event]) -> None:
        events = list(new)
        file, self.file = self.file, None
        if file is None:
            name = f"events.out.tfevents.{time.time():010.0f}.{platform.node()}.{os.getpid()}"
            file = self.folder / f"{name}.{next(COUNT):06d}"
            events = [_event(file_version="brain.Event:2"), *self.start, *events]
            self.folder.mkdir(parents=True, exist_ok=True)
        append(file, _records(events))
        self.file, self.start = file, []


def _kind(value: object) -> Any:
    """The type of a hyper-parameter."""
    if isinstance(value, bool):
        return api_pb2.DATA_TYPE_BOOL
    number = isinstance(value, int | float)
    return api_pb2.DATA_TYPE_FLOAT64 if number else api_pb2.DATA_TYPE_STRING


def _plugin_value(tag: str, **content: Any) -> Summary.Value:
    """What the plugin of hyper-parameters reads."""
    data = plugin_data_pb2.HParamsPluginData(**content)
    made = Summary.Value(tag=tag)
    made.metadata.MergeFromString(metadata.create_summary_metadata(data).SerializeToString())
    return made


def _event(when: float | None = None, **content: object) -> Event:
    return Event(wall_time=time.time() if when is None else when, **content)


def _records(events: Iterable[Event]) -> bytes:
    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    for event in events:
        writer.write(event.SerializeToString())
    return buffer.getvalue()
