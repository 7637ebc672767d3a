# pyright: reportMissingImports=false
"""Experiment trackers get a run's whole curve, once, whatever happens to them."""

import json
import os
import sqlite3
import struct
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from accelerate.tracking import TensorBoardTracker
from small import ROOT, TINY
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bigvit.training import trackers
from bigvit.training.trackers import Tracker

RECIPE = {"model": {"depth": 3, "grid": [4, 4]}, "ema": None}
Steps = list[int]


@pytest.fixture
def tensorboard(monkeypatch: pytest.MonkeyPatch) -> str:
    """A tracker of accelerate's that is installed everywhere."""

    def start(folder: Path, run: str, known: bool) -> Any:
        return TensorBoardTracker("events", str(folder))

    monkeypatch.setitem(trackers.START, "tensorboard", start)
    return "tensorboard"


def told(folder: Path, name: str = "loss", of: str = "events") -> Steps:
    """Steps that all its event files together hold."""
    found: Steps = []
    for file in sorted((folder / of).glob("events.*")):
        events = EventAccumulator(str(file)).Reload()
        if name in events.Tags()["scalars"]:
            found += [event.step for event in events.Scalars(name)]
    return found


def test_what_a_tracker_has_is_not_told_again(tensorboard, tmp_path):
    said: list[str] = []
    for first, last in ((0, 5), (3, 9)):  # the second goes on from an older checkpoint
        tracker = Tracker(tensorboard, tmp_path, RECIPE, said.append)
        for batch in range(first, last):
            tracker.add((batch, 0), {"loss": 1 / (batch + 1)})
            tracker.add((batch, 1), {"top1": 10.0 * batch})
        tracker.close()
    assert told(tmp_path) == told(tmp_path, "top1") == list(range(9))
    assert said == []


def test_two_of_one_run_know_each_its_own(tensorboard, tmp_path, monkeypatch):
    def start(folder: Path, run: str, known: bool) -> Any:
        assert known == (folder / "tracker_other.json").exists()
        return TensorBoardTracker("others", str(folder))

    monkeypatch.setitem(trackers.START, "other", start)
    for first, last in ((0, 3), (2, 6)):
        both = [Tracker(kind, tmp_path, RECIPE, print) for kind in (tensorboard, "other")]
        for batch in range(first, last):
            for tracker in both:
                tracker.add((batch, 0), {"loss": 1.0})
        for tracker in both:
            tracker.close()
    assert told(tmp_path) == told(tmp_path, of="others") == list(range(6))
    files = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("tracker_*.json"))]
    assert [known["told"] for known in files] == [[5, 0], [5, 0]]
    assert files[0]["id"] != files[1]["id"]


def test_one_that_fails_is_said_once_and_told_all_later(tensorboard, tmp_path):
    said: list[str] = []
    (tmp_path / "events").write_text("in the way")
    tracker = Tracker(tensorboard, tmp_path, RECIPE, said.append)
    for batch in range(4):
        tracker.add((batch, 0), {"loss": 1.0})
    while not said:
        pass
    assert "tensorboard cannot be written for now (" in said[0]
    assert "; training goes on" in said[0]
    (tmp_path / "events").unlink()
    tracker.add((4, 0), {"loss": 1.0})
    tracker.close()
    assert told(tmp_path) == list(range(5))
    assert said[1:] == ["tensorboard is written again"]


def test_one_that_does_not_answer_keeps_nobody(monkeypatch, tmp_path):
    def start(*_: object) -> Any:
        import threading

        threading.Event().wait()

    monkeypatch.setitem(trackers.START, "mute", start)
    monkeypatch.setattr(trackers, "CLOSING", 0.2)
    said: list[str] = []
    tracker = Tracker("mute", tmp_path, RECIPE, said.append)
    for batch in range(10):
        tracker.add((batch, 0), {"loss": 1.0})
    tracker.close()
    assert said == ["warning: mute was not told the end of the curve"]


def test_one_that_is_not_installed_is_refused(warm, tmp_path):
    absent = [name for name in trackers.START if find_spec(name) is None]
    if not absent:
        pytest.skip("all are installed")
    where = ("--run-dir", tmp_path / "run", "--tracker", absent[0])
    done = warm(2, "scripts/train.py", "digits_vit", *TINY, *where)
    assert done.code == 2
    assert done.output.count("error: ") == 1
    assert f"--tracker {absent[0]}: it is not installed; pip install {absent[0]}" in done.output
    assert not (tmp_path / "run").exists()


def of_wandb(run: Path, known: str) -> Steps:
    from wandb.proto import wandb_internal_pb2

    found: Steps = []
    for file in sorted(run.glob("wandb/offline-run-*/*.wandb")):
        assert known in file.parent.name
        for data in _records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if "loss" in {item.key or "/".join(item.nested_key) for item in record.history.item}:
                found.append(record.history.step.num)
    return found


def _records(log: bytes) -> Iterator[bytes]:
    """The records of a file that is laid out as LevelDB's log: blocks of 32 KiB with pieces."""
    at, whole = 7, b""  # behind W&B's own header
    while at + 7 < len(log):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        size, piece = struct.unpack_from("<HB", log, at + 4)
        whole += log[at + 7 : at + 7 + size]
        at += 7 + size
        if piece in (1, 4):  # whole, or the last piece
            yield whole
            whole = b""


def of_mlflow(run: Path, known: str) -> Steps:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{run.parent}/mlflow.db")
    return [each.step for each in mlflow.MlflowClient().get_metric_history(known, "loss")]


def of_trackio(run: Path, known: str) -> Steps:
    (file,) = (run.parent / "trackio").glob("*.db")
    rows = sqlite3.connect(file).execute("select step, metrics from metrics order by step")
    return [step for step, metrics in rows if "loss" in json.loads(metrics)]


def of_comet_ml(run: Path, known: str) -> Steps:
    found: Steps = []
    for file in sorted((run / "comet").glob("*.zip"), key=os.path.getmtime):
        with zipfile.ZipFile(file) as archive:
            for line in archive.read("messages.json").decode().splitlines():
                metric = json.loads(line)["payload"].get("metric")
                if metric and metric["metricName"] == "loss":
                    found.append(metric["step"])
    return found


def of_dvclive(run: Path, known: str) -> Steps:
    lines = (run / "dvclive" / "plots" / "metrics" / "loss.tsv").read_text().splitlines()
    return [int(line.split("\t")[0]) for line in lines[1:]]


def of_aim(run: Path, known: str) -> Steps:
    import aim

    (metric,) = (m for m in aim.Run(known, repo=str(run / "aim")).metrics() if m.name == "loss")
    return sorted(metric.dataframe()["step"])


READ: dict[str, Callable[[Path, str], Steps]] = {
    "wandb": of_wandb,
    "mlflow": of_mlflow,
    "trackio": of_trackio,
    "comet_ml": of_comet_ml,
    "dvclive": of_dvclive,
    "aim": of_aim,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize("kind", READ)
def test_a_stopped_and_resumed_run_is_one_curve(kind, warm, tmp_path):
    pytest.importorskip(kind)
    run = tmp_path / "run"
    local = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    local["TRACKIO_DIR"] = str(tmp_path / "trackio")
    words = ("digits_vit", *TINY, "--schedule.epochs", 4, "--log-every", 1, "--workers", 0)
    for more in (("--stop-after", 3), ("--stop-after", 7), ("--stop-after", 10)):
        where = ("--run-dir", run, "--tracker", kind, "--resume", "auto")
        started = warm.start(2, "scripts/train.py", *words, *where, *more, environment=local)
        done = started.wait(120)
        assert done.code == 85, done.output
        assert "cannot be written" not in done.output
    known = json.loads((run / f"tracker_{kind}.json").read_text())["id"]
    assert not (ROOT / "dvc.yaml").exists()
    assert READ[kind](run, known) == list(range(1, 11))
