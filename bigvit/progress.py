"""What a person and a file are told while training: rank 0 speaks, the others are silent."""

import sys
import time
from collections.abc import Sequence
from datetime import timedelta

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from bigvit.checkpoint.files import write_json
from bigvit.checkpoint.folder import CLASSES, RunFolder
from bigvit.engines.engine import StepInfo
from bigvit.evaluate import Counts
from bigvit.recipe import Recipe


class Progress:
    """A bar on a terminal, plain lines elsewhere, and a line of metrics.jsonl in any case."""

    def __init__(self, recipe: Recipe, first: int, folder: RunFolder | None) -> None:
        self.recipe, self.folder = recipe, folder
        self.bar = self.board = None
        if folder is not None:
            folder.take_up(first)
            self.board = SummaryWriter(str(folder.path / "tensorboard"), purge_step=first + 1)
            if sys.stderr.isatty():
                total = recipe.updates
                self.bar = tqdm(total=total, initial=first, unit="update", dynamic_ncols=True)
        self._begin(first)

    def _begin(self, update: int) -> None:
        """Start to measure anew, after what was not training."""
        self.began, self.since, self.waited = time.perf_counter(), update, 0.0

    def updated(self, update: int, info: StepInfo, waited: float, log: bool) -> None:
        """An update was done, after waiting this many seconds for its images."""
        if self.folder is None:
            return
        self.waited += waited
        self.folder.update = update
        if self.bar is not None:
            self.bar.update(update - self.bar.n)
        if log:
            self._log(update, info, self.folder)
            self._begin(update)

    def _log(self, update: int, info: StepInfo, folder: RunFolder) -> None:
        recipe = self.recipe
        seconds = time.perf_counter() - self.began
        rate = (update - self.since) / seconds
        line = {
            "update": update,
            "epoch": update / recipe.updates_per_epoch,
            "loss": info.loss,
            **(info.losses if len(info.losses) > 1 else {}),
            "lr": recipe.lr(update - 1),
            "grad_norm": info.grad_norm,
            "images_per_second": rate * recipe.batch_size,
            "waiting": self.waited / seconds,
        }
        self._write(folder, line)
        folder.say("running")
        shown = (
            f"loss {info.loss:.4f}  lr {line['lr']:.2e}  {line['images_per_second']:.0f} images/s  "
            f"waiting {100 * line['waiting']:.0f} %"
        )
        if self.bar is not None:
            self.bar.set_postfix_str(shown)
        else:
            left = timedelta(seconds=round((recipe.updates - update) / rate))
            self.say(f"update {update}/{recipe.updates}  {shown}  {left} left")

    def _write(self, folder: RunFolder, line: dict[str, float]) -> None:
        """A line of metrics.jsonl, and the same for TensorBoard."""
        folder.log(line)
        assert self.board is not None
        for name, value in line.items():
            if name != "update":
                self.board.add_scalar(name, value, int(line["update"]))
        self.board.flush()

    def evaluated(self, update: int, counts: Counts) -> None:
        """The test images were counted."""
        if self.folder is not None:
            epoch, shown = update / self.recipe.updates_per_epoch, counts.as_json()
            self._write(self.folder, {"update": update, "epoch": epoch, **shown})
            self.say(
                f"epoch {epoch:g}  top-1 {shown['top1']:.2f} %  top-5 {shown['top5']:.2f} %  "
                f"of {counts.images} test images"
            )
            self._begin(update)

    def classes(self, names: list[str]) -> None:
        """The classes have these names."""
        if self.folder is not None:
            write_json(self.folder.path / CLASSES, names)

    def unreadable(self, names: Sequence[str]) -> None:
        """Images could not be read."""
        if self.folder is not None and (new := self.folder.list_bad(names)):
            self.say(f"{new} unreadable images more, listed in {self.folder.bad_images}")

    def saved(self, update: int) -> None:
        """A checkpoint was written."""
        if self.folder is not None:
            self.folder.say("running")
            self.say(f"saved update {update}")
            self._begin(update)

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
        if self.board is not None:
            self.board.close()
