"""What the authors' logs say of their own runs of a recipe, beside ours. No torch here.

`published.json` has the top-1 accuracy of fourteen runs of DeiT III on ImageNet-1k, every five
epochs, as facebookresearch/deit prints it. The log counts its lines by epoch, and whether line 5
stands after five epochs or six it doesn't say: a run is compared with one epoch either way.
"""

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from bigvit.recipe.find import find_recipe
from bigvit.recipe.store import differences, is_named, to_json

FIRST = 5  # epoch from which on it tells something: before, all is warm-up
NOISE = 0.3  # points of top-1: three standard deviations over seeds (thesis, figure 6.7)
# what makes two runs comparable; all else that differs is named
MUST = ("model", "data.image_size", "data.classes", "data.train_images", "schedule.epochs")
MAY = ("model.drop_path",)
ASIDE = ("source", "seed", "data.dataset", "data.test_images", "starts_from")


class Published(NamedTuple):
    """A published curve. Shapes: as many epochs as values."""

    recipe: str  # its name
    source: str
    epochs: list[float]
    top1: list[float]  # percent
    differs: list[str]  # in what the run's recipe is another one, `path: theirs -> the run's`

    def at(self, epoch: float) -> float:
        """The value at an epoch, between two lines of the log on a straight line."""
        x, y = self.epochs, self.top1
        after = next((i for i, each in enumerate(x) if each >= epoch), len(x) - 1)
        if after == 0 or epoch >= x[-1]:
            return y[after]
        share = (epoch - x[after - 1]) / (x[after] - x[after - 1])
        return y[after - 1] + share * (y[after] - y[after - 1])

    def band(self, epoch: float) -> tuple[float, float]:
        """The least and most that is on course: the log one epoch either way, and the noise."""
        near = [self.at(epoch + step) for step in (-1, 0, 1)]
        return min(near) - NOISE, max(near) + NOISE


class Compared(NamedTuple):
    """A run's evaluation beside the log."""

    epoch: float
    top1: float
    published: float
    low: float
    high: float

    @property
    def said(self) -> str:
        """on course, ahead or behind."""
        if self.low <= self.top1 <= self.high:
            return "on course"
        return "ahead" if self.top1 > self.high else "behind"


def published_for(recipe: dict[str, Any]) -> Published | None:
    """The curve of the recipe that differs least from this one (JSON); None where no run of such a
    model, resolution, data set and length was published."""
    fit: list[Published] = []
    kept = _kept()
    for name, curve in kept["curves"].items():
        theirs = _recipe(name)
        changed = [line for line in differences(theirs, recipe) if not is_named(line, ASIDE)]
        starts = [each.get("starts_from") is None for each in (theirs, recipe)]
        must = [line for line in changed if is_named(line, MUST) and not is_named(line, MAY)]
        if starts[0] == starts[1] and not must:
            fit.append(Published(name, kept["source"], curve["epochs"], curve["top1"], changed))
    return min(fit, key=lambda each: len(each.differs), default=None)


def compared(log: Published, epochs: Sequence[float], top1: Sequence[float]) -> list[Compared]:
    """Evaluations beside the log, from the fifth epoch on."""
    return [
        Compared(epoch, value, log.at(epoch), *log.band(epoch))
        for epoch, value in zip(epochs, top1, strict=True)
        if epoch >= FIRST
    ]


@cache
def _kept() -> dict[str, Any]:
    return json.loads((files("bigvit.report") / "published.json").read_text())


@cache
def _recipe(name: str) -> dict[str, Any]:
    return to_json(find_recipe(name)[1])
