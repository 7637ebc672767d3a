"""What a person and a file are told while training: rank 0 speaks, the others are silent."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from bigvit.checkpoint import metrics
from bigvit.checkpoint.files import write_json
from bigvit.checkpoint.run import CLASSES
from bigvit.data.batch import Batch
from bigvit.engines.engine import StepInfo
from bigvit.engines.teacher import Stopwatch
from bigvit.evaluate import Measured
from bigvit.recipe import Recipe
from bigvit.recipe.store import to_json
from bigvit.training.beside import Beside
from bigvit.training.board import TEST, TRAIN, Board
from bigvit.training.foreseen import Foreseen, told
from bigvit.training.run_folder import RunFolder

BOARD = "tensorboard"  # TensorBoard's folder in a run's


class Place(NamedTuple):
    """How far a run has come."""

    batch: int  # global batches consumed
    update: int  # updates applied: fewer where fp16, or a rollback, skipped some

    @property
    def counted(self) -> str:
        """What its number of batches counts."""
        return "update" if self.batch == self.update else "batch"


class Progress:
    """A bar on a terminal, plain lines elsewhere, and a line of metrics.jsonl in any case."""

    def __init__(
        self,
        recipe: Recipe,
        first: Place,
        folder: RunFolder | None,
        evaluation_due: bool = False,
        trackers: Sequence[str] = (),
        foreseen: Foreseen | None = None,
        teacher: Stopwatch | None = None,
    ) -> None:
        """The run goes on from a place, an evaluation there included where it is due."""
        self.recipe, self.folder, self.foreseen = recipe, folder, foreseen
        self.teacher = teacher
        self.bar: tqdm[Any] | None = None
        self.beside = Beside(self.say)
        self.trackers: list[Any] = []
        self._begin(first)
        if folder is None:
            return
        self._draw_from(first, folder)
        described = partial(
            Board(folder.path / BOARD, 0).describe,
            folder.path.name,
            dict(flat(to_json(recipe))),
            [_drawn(name) for name in recipe.metrics],
        )
        self.beside.write("TensorBoard's log", described)
        if sys.stderr.isatty():
            total, done = recipe.updates, first.batch
            self.bar = tqdm(total=total, initial=done, unit="update", dynamic_ncols=True)
        forget = partial(folder.forget_after, first.batch, evaluation_due)
        self.beside.write(folder.metrics.name, forget)
        folder.update = first.update
        self._status(folder)
        if trackers:
            from bigvit.training.trackers import Tracker  # slow

            told = to_json(recipe), self.say
            self.trackers = [Tracker(kind, folder.path, *told) for kind in trackers]

    def rolled_back(self, place: Place, evaluation_due: bool, text: str) -> None:
        """Training goes on from an earlier place, as a resumed run does: what came after it is
        forgotten.

        Args:
            text: what happened.
        """
        self._begin(place)
        if self.folder is None:
            return
        self.say(text)
        if self.foreseen is not None:
            self.foreseen.begins(place.batch)
        self._draw_from(place, self.folder)
        if self.bar is not None:
            self.bar.n = place.batch
            self.bar.refresh()
        forget = partial(self.folder.forget_after, place.batch, evaluation_due)
        self.beside.write(self.folder.metrics.name, forget)
        self.folder.update = place.update
        self._status(self.folder)

    def _draw_from(self, place: Place, folder: RunFolder) -> None:
        """Let TensorBoard's curves go on after a place, whatever was drawn there before."""
        below, first = folder.path / BOARD, place.batch + 1
        train, test = Board(below / TRAIN, first), Board(below / TEST, first)
        self.boards = {metrics.UPDATE: train, metrics.EVALUATION: test}

    def skipped(self, place: Place) -> None:
        """A batch was left out."""
        self.place = place
        self.since += 1
        if self.folder is not None and self.bar is not None:
            self.bar.update(place.batch - self.bar.n)

    def _begin(self, place: Place) -> None:
        """Start to measure anew, after what was not training."""
        self.place = place
        self.began, self.since, self.waited = time.perf_counter(), place.batch, 0.0
        self.images, self.core_seconds = 0, 0.0
        if self.teacher is not None:
            self.teacher.begin()

    def waits(self, seconds: float) -> None:
        """Training waited for images."""
        self.waited += seconds
        if self.foreseen is not None:
            self.foreseen.waits(seconds)

    def consumes(self, micro: Sequence[Batch]) -> None:
        """This rank's part of a batch is trained on."""
        self.images += sum(len(batch.images) for batch in micro)
        self.core_seconds += sum(batch.core_seconds for batch in micro)

    def updated(self, place: Place, lr: float, info: StepInfo, log: bool) -> None:
        """A batch was consumed."""
        self.place = place
        if self.folder is None:
            return
        self.folder.update = place.update
        if self.bar is not None:
            self.bar.update(place.batch - self.bar.n)
        if not info.applied:
            scale = f"loss scale {info.loss_scale:g} -> {info.loss_scale / 2:g}"
            self.say(f"batch {place.batch} skipped: its gradient overflowed fp16; {scale}")
        if log:
            self._log(place, lr, info, self.folder)
            self._begin(place)
        if self.foreseen is not None and (found := self.foreseen.updated(place.batch)) is not None:
            self._write_line(self.folder, metrics.PLANNED, place, found)
            self.say(told(found))

    def _log(self, place: Place, lr: float, info: StepInfo, folder: RunFolder) -> None:
        recipe = self.recipe
        seconds = time.perf_counter() - self.began
        rate = (place.batch - self.since) / seconds
        line: dict[str, Any] = {
            "loss": info.loss,
            **(info.losses if len(info.losses) > 1 else {}),
            "lr": lr,
            "grad_norm": info.grad_norm if info.applied else None,
            **({"loss_scale": info.loss_scale} if recipe.precision == "fp16" else {}),
            "images_per_second": (images := rate * recipe.batch_size),
            **(self.foreseen.use(images) if self.foreseen is not None else {}),
            "waiting": self.waited / seconds,
            **({"teacher": self.teacher.seconds() / seconds} if self.teacher is not None else {}),
            "images_per_core_second": self.images / max(self.core_seconds, 1e-9),
            **({"norms": info.norms} if info.norms is not None else {}),
        }
        self._write(folder, metrics.UPDATE, place, line)
        self._status(folder)
        shown = (
            f"loss {info.loss:.4f}  lr {line['lr']:.2e}  {line['images_per_second']:.0f} images/s  "
            f"waiting {100 * line['waiting']:.0f} %  "
            f"{line['images_per_core_second']:.0f} images/s and core"
        )
        if "teacher" in line:
            shown += f"  teacher {100 * line['teacher']:.0f} %"
        if "flops_use" in line:
            shown += f"  {100 * line['flops_use']:.1f} % of the peak FLOPs"
        if self.bar is not None:
            self.bar.set_postfix_str(shown)
        else:
            left = timedelta(seconds=round((recipe.updates - place.batch) / rate))
            self.say(f"{place.counted} {place.batch}/{recipe.updates}  {shown}  {left} left")

    def _write(self, folder: RunFolder, kind: str, place: Place, measured: dict[str, Any]) -> None:
        """A line of metrics.jsonl, and the same for TensorBoard."""
        epoch = self._write_line(folder, kind, place, measured)
        drawn = [("epoch", epoch), *_scalars(measured)]
        renamed = [(_drawn(name), value) for name, value in drawn]
        write = partial(self.boards[kind].add, renamed, place.batch, time.time())
        self.beside.write("TensorBoard's log", write)
        for tracker in self.trackers:
            tracker.add((place.batch, int(kind == metrics.EVALUATION)), dict(drawn))

    def _write_line(
        self, folder: RunFolder, kind: str, place: Place, measured: dict[str, Any]
    ) -> float:
        """A line of metrics.jsonl; returns the epoch."""
        epoch = place.batch / self.recipe.updates_per_epoch
        line = metrics.new_line(kind, *place, epoch, measured)
        self.beside.write(folder.metrics.name, partial(folder.log, line))
        return epoch

    def _status(self, folder: RunFolder) -> None:
        self.beside.write("status.json", folder.write_status, kept=1)

    def evaluated(self, place: Place, counts: Measured, averaged: Measured | None) -> None:
        """The test images were counted, by the weights and, where asked for, by their average."""
        if self.folder is not None:
            shown = counts.as_json()
            ema = {} if averaged is None else {f"ema_{k}": v for k, v in averaged.as_json().items()}
            self._write(self.folder, metrics.EVALUATION, place, {**shown, **ema})
            said = counts.said(None if averaged is None else averaged.as_json())
            self.say(
                f"epoch {place.batch / self.recipe.updates_per_epoch:g}  "
                f"{said}  of {counts.images} test images"
            )
            self._begin(place)

    def classes(self, names: list[str]) -> None:
        """The classes have these names."""
        if self.folder is not None:
            self.beside.write(CLASSES, partial(write_json, self.folder.path / CLASSES, names))

    def unreadable(self, names: Sequence[str]) -> None:
        """Images could not be read."""
        if self.folder is not None and names:
            self.beside.write(
                self.folder.bad_images.name, partial(self._list_bad, self.folder, names)
            )

    def _list_bad(self, folder: RunFolder, names: Sequence[str]) -> None:
        if new := folder.list_bad(names):
            images = "image" if new == 1 else "images"
            self.say(f"{new} more unreadable {images}, listed in {folder.bad_images}")

    def saved(self, batch: int) -> None:
        """The checkpoint after this many batches is whole."""
        self.say(f"saved {self.place.counted} {batch}")

    def traced(self, path: Path, write: Callable[[str], object]) -> None:
        """Updates were traced by torch's profiler, which writes a file."""

        def whole() -> None:
            path.parent.mkdir(exist_ok=True)
            write(str(path))
            self.say(f"a trace of updates is in {path}; chrome://tracing or perfetto.dev shows it")

        self.beside.write(path.name, whole, kept=1)

    def warn(self, text: str) -> None:
        """Something is wrong, and training goes on."""
        if self.folder is not None:
            self.say(f"warning: {text}")

    def stopped(self, images: Sequence[str], good: Path | None, not_good: Sequence[str]) -> str:
        """An update was refused: list its images, and say where, and what there is to go on from;
        nothing on other ranks.

        Args:
            good: the newest checkpoint that is.
            not_good: what is wrong with each newer one.
        """
        if self.folder is None:
            return ""
        listed = self.folder.path / "stopped_images.txt"
        text = "".join(f"{name}\n" for name in images)
        self.beside.write(listed.name, partial(listed.write_text, text))
        reasons = f" ({'; '.join(not_good)})" if not_good else ""
        saved = "no checkpoint is good" if not_good else "there is no checkpoint"
        if good is not None:
            saved = f"the last good checkpoint is {good}"
            reasons += "; branch off from it into another --run-dir" if not_good else ""
        return f"; its {len(images)} images are listed in {listed}; {saved}{reasons}"

    def ends(self, why: str) -> None:
        """The run ends before its recipe does."""
        if self.folder is not None:
            self.folder.why = why

    def say(self, text: str) -> None:
        """A line, above the bar where there is one."""
        if self.bar is not None:
            self.bar.write(text)
        else:
            print(text, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None
        self.beside.close()
        for tracker in self.trackers:
            tracker.close()


def _drawn(name: str) -> str:
    """What a number's curve is called, beside those of training."""
    return name.replace("test_loss", "loss")


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """What a JSON value holds that is not empty, each by its path."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for name, each in inside:
        if isinstance(each, (dict, list)):
            yield from flat(each, f"{path}{name}.")
        elif each is not None:
            yield f"{path}{name}", each


def _scalars(measured: dict[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """The numbers that TensorBoard draws, those inside by their path."""
    for name, value in measured.items():
        if isinstance(value, dict):
            yield from _scalars(value, f"{path}{name}/")
        elif value is not None:
            yield path + name, value
