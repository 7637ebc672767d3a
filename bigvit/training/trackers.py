# pyright: reportMissingImports=false
"""Experiment trackers, by way of accelerate. Each has a thread of its own: whatever it does, and
however long that takes, training goes on."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from accelerate import tracking

from bigvit.checkpoint.files import write_json
from bigvit.recipe.words import read_json
from bigvit.training.beside import Beside, Write

PROJECT = "bigvit"
KEPT = 100_000  # lines that wait at most for a tracker that does not answer
CLOSING = 60.0  # seconds that a tracker has at the end
REACHING = 3.0  # seconds in which its server must answer, or it works offline

Step = tuple[int, int]
"""Global batches consumed, and what was measured there: an update before an evaluation."""


class Tracker:
    """A run's curve in one tracker. A run that is gone on with goes on there; what the tracker has
    already is not told again."""

    def __init__(
        self, kind: str, folder: Path, recipe: Mapping[str, Any], report: Callable[[str], None]
    ) -> None:
        """
        Args:
            kind: as accelerate calls it.
            folder: the run's.
            recipe: told to the tracker as the run's configuration.
            report: told once what does not work.
        """
        self.kind, self.folder, self.report = kind, folder, report
        self.recipe = dict(_flat(recipe))
        self.file = folder / f"tracker_{kind}.json"  # its run's id, and the last step that it has
        self.known: dict[str, Any] = {}
        self.made: Any = None
        self.beside = Beside(report)  # of the thread alone
        self.lines: Queue[Write | None] = Queue()
        self.thread = threading.Thread(target=self._work, name=f"tracker {kind}", daemon=True)
        self.thread.start()

    def add(self, step: Step, values: Mapping[str, float]) -> None:
        """Tell what was measured, some time."""
        if self.lines.qsize() < KEPT:
            self.lines.put(partial(self._tell, step, dict(values)))

    def close(self) -> None:
        """Wait for what is left, for a while."""
        self.lines.put(None)
        self.thread.join(CLOSING)
        if self.thread.is_alive():
            self.report(f"warning: {self.kind} was not told the end of the curve")

    def _work(self) -> None:
        while (tell := self.lines.get()) is not None:
            self.beside.write(self.kind, tell, KEPT)
        if self.made is not None:
            self.beside.write(self.kind, self.made.finish, KEPT)
        self.beside.close()

    def _tell(self, step: Step, values: dict[str, float]) -> None:
        if self.made is None:
            self.made = self._start()
        if list(step) > self.known["told"]:
            self.made.log(values, step=step[0])
            self.known["told"] = list(step)
            write_json(self.file, self.known)

    def _start(self) -> Any:
        """The tracker, in the run that it had for this one before."""
        # its log asks for accelerate's state, which joins process groups and chooses devices
        tracking.logger.log = lambda *_, **__: None  # pyright: ignore[reportAttributeAccessIssue]
        first = not self.file.exists()
        self.known = {"id": uuid4().hex, "told": [-1, 0]} if first else read_json(self.file)
        made: Any = START[self.kind](self.folder, self.known["id"], not first)
        made.main_process_only = False  # this is the one: accelerate need not ask
        made.start()
        if self.kind in OWN:
            self.known["id"] = OWN[self.kind](made.tracker)
        if first:
            made.store_init_configuration(self.recipe)
        write_json(self.file, self.known)
        return made


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """What a JSON value holds, each by its path."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for name, each in inside:
        if isinstance(each, (dict, list)):
            yield from _flat(each, f"{path}{name}.")
        else:
            yield f"{path}{name}", "" if each is None else each


def _answers(address: str) -> bool:
    """Whether a server can be reached, by its address on the web."""
    url = urlsplit(address)
    port = url.port or (80 if url.scheme == "http" else 443)
    with contextlib.suppress(OSError), socket.create_connection((url.hostname, port), REACHING):
        return True
    return False


def _wandb(folder: Path, run: str, known: bool) -> Any:
    import wandb

    online = wandb.api.api_key and _answers(wandb.Settings().base_url)
    return tracking.WandBTracker(
        os.environ.get("WANDB_PROJECT", PROJECT),
        name=folder.name,
        id=run,
        resume="allow",
        dir=str(folder),
        mode=os.environ.get("WANDB_MODE", "online" if online else "offline"),
    )


def _mlflow(folder: Path, run: str, known: bool) -> Any:
    more: Any = {"run_id": run} if known else {"run_name": folder.name}
    return tracking.MLflowTracker(PROJECT, **more)


def _trackio(folder: Path, run: str, known: bool) -> Any:
    return tracking.TrackioTracker(PROJECT, name=f"{folder.name}-{run[:8]}", resume="allow")


def _comet(folder: Path, run: str, known: bool) -> Any:
    import comet_ml

    settings = comet_ml.get_config()
    online = settings["comet.api_key"] and _answers(settings["comet.url_override"])
    offline = comet_ml.ExperimentConfig(offline_directory=str(folder / "comet"))
    return tracking.CometMLTracker(
        os.environ.get("COMET_PROJECT_NAME", PROJECT),
        experiment_key=run,
        mode="get_or_create" if online else None,
        online=bool(online),
        experiment_config=offline,
    )


def _dvclive(folder: Path, run: str, known: bool) -> Any:
    # no dvc.yaml in the current folder, which is the user's repository
    own: Any = {"dvcyaml": False, "save_dvc_exp": False}
    return tracking.DVCLiveTracker(dir=str(folder / "dvclive"), resume=known, **own)


def _aim(folder: Path, run: str, known: bool) -> Any:
    repository = folder / "aim"
    repository.mkdir(exist_ok=True)
    more = {"run_hash": run} if known else {"experiment": PROJECT}
    return tracking.AimTracker(folder.name, str(repository), **more)


# a tracker of a run's folder, which has an id there, and whether the tracker knows it already
START: dict[str, Callable[[Path, str, bool], Any]] = {
    "wandb": _wandb,
    "mlflow": _mlflow,
    "trackio": _trackio,
    "comet_ml": _comet,
    "dvclive": _dvclive,
    "aim": _aim,
}

OWN: dict[str, Callable[[Any], str]] = {
    "mlflow": lambda run: run.info.run_id,
    "aim": lambda run: run.hash,
}
"""Trackers that name a new run by themselves: how."""
