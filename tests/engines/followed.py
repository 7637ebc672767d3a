"""What a rank does to show that a follower, further views and what an objective keeps are the same
under every engine, in a checkpoint, and at another number of ranks."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tiny
import torch
import torch.distributed as dist
from launched import options, train
from torch import Tensor, nn

from bigvit import objectives
from bigvit.data.prepare import Targets
from bigvit.models.output import Output
from bigvit.objectives.objective import Kept, Objective
from bigvit.ranks.joining import Ranks
from bigvit.recipe import (
    CrossEntropy,
    Digits,
    Recipe,
)

WAYS = (0, 1, 2, 3, "fsdp2 full", "fsdp2 grads", "fairscale oss", "fairscale sdp")
HALVES = (1, 3, "fsdp2 full")  # stopped, and resumed here and at other numbers of ranks
ROWS, WIDTH, OUTPUTS = 64, 5, 11


@dataclass(frozen=True)
class Followed(CrossEntropy):
    """A recipe's objective that the tests build."""

    held_epochs: int


class Follows(Objective):
    """Draws the model's answers on views of an image to the follower's on its other views, and
    keeps: a table cut by rows of how the answers of classes were, and their mean."""

    seen, asked, followed = (1,), (0, 1), "head"
    held = ("last.weight",)

    def __init__(self, dim: int, weight: float) -> None:
        super().__init__("followed", weight)
        self.head = nn.Sequential(nn.Linear(dim, OUTPUTS, bias=False), nn.Tanh())
        self.last = nn.Linear(OUTPUTS, WIDTH)

    def meet(self, rank: int, world: int, device: torch.device) -> None:
        rows = -(-ROWS // world)
        self.first = min(rank * rows, ROWS)
        count = min(rows, ROWS - self.first)
        self.world, self.rank = world, rank
        self.table = torch.zeros(count, OUTPUTS, device=device)
        self.mean = torch.zeros(OUTPUTS, device=device)
        self.noted: list[tuple[Tensor, Tensor]] = []

    def kept(self) -> Iterable[Kept]:
        yield Kept("table", (ROWS, OUTPUTS), self.first * OUTPUTS, self.table, True)
        yield Kept("mean", (OUTPUTS,), 0, self.mean, self.rank == 0)

    def fresh(self, name: str, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop).sin() if name == "table" else torch.zeros(stop - start)

    def forward(self, output: Output, targets: Targets, draws: Sequence[Tensor]) -> Tensor:
        own = self.last(self.head(output.views[1])).float()
        theirs = output.followed[1].roll(1, dims=1) - self.mean
        first = output.followed[0][:, 0]
        self.noted.append((targets.classes, first))
        rows = self.table.mean(dim=0)  # of this rank: no more than a small term
        assert rows.isfinite().all()
        return (own - theirs[..., :WIDTH]).square().mean() + 0 * own.sum()

    def applied(self) -> None:
        sums = torch.zeros(ROWS, OUTPUTS + 1, dtype=torch.float64, device=self.mean.device)
        for classes, first in self.noted:
            sums.index_add_(0, classes, torch.cat([first, first[:, :1] * 0 + 1], dim=1).double())
        if self.world > 1:
            dist.all_reduce(sums)
        total = sums.sum(dim=0)
        self.mean.lerp_((total[:-1] / total[-1]).float(), 0.1)
        own = sums[self.first : self.first + len(self.table)]
        self.table.add_((own[:, :-1] / own[:, -1:].clamp(min=1)).float())
        self.noted = []

    def forget(self) -> None:
        self.noted = []


def build(of: object, *given: Any) -> Objective:
    """What `objectives.build` does, of the tests' own too."""
    if isinstance(of, Followed):
        return Follows(recipe.model.embed_dim, of.weight)  # pyright: ignore
    return BUILD(of, *given)  # pyright: ignore


BUILD = objectives.build


@contextmanager
def known() -> Iterator[None]:
    """Inside, tasks can have the tests' objective."""
    objectives.build = build  # pyright: ignore
    try:
        yield
    finally:
        objectives.build = BUILD


assert isinstance(tiny.lamb.data, Digits)
recipe: Recipe = replace(
    tiny.lamb,
    optim=replace(tiny.adamw.optim, weight_decay_end=0.4),
    data=replace(tiny.lamb.data, views=2),
    objectives=(
        *tiny.lamb.objectives,
        Followed(weight=0.5, smoothing=0.0, class_weights=None, held_epochs=1),  # pyright: ignore
    ),
    schedule=replace(tiny.adamw.schedule, epochs=2, warmup_epochs=0),
    ema=0.8,
    ema_end=1.0,
)
half = replace(recipe, precision="bf16", gradient_precision="fp32")


def followed(ranks: Ranks, folder: Path) -> None:
    """Runs without a stop, and some that are stopped in mid-epoch."""
    with known():
        for way in WAYS:
            train(ranks, folder / f"followed {way}", recipe, **options(way))
        train(ranks, folder / "followed bf16", half, **options(3))
        for way in HALVES:
            path = folder / f"followed halves {way}"
            train(ranks, path, recipe, stop_after=tiny.STOP, **options(way))
            copies(ranks, path, "followed again", "followed elsewhere")
            again = folder / f"followed again {way}"
            train(ranks, again, recipe, resume="auto", **options(way))


def copies(ranks: Ranks, halves: Path, *names: str) -> None:
    """Stopped runs as "NAME WAY" beside one called "... halves WAY"."""
    for name in names if ranks.rank == 0 else ():
        shutil.copytree(halves, halves.with_name(f"{name} {halves.name.partition('halves ')[2]}"))
    ranks.agree(0)


def followed_halves(ranks: Ranks, folder: Path) -> None:
    """The stopped runs resumed."""
    with known():
        for way in HALVES:
            path = folder / f"followed halves {way}"
            train(ranks, path, recipe, resume="auto", **options(way))


def followed_elsewhere(ranks: Ranks, folder: Path) -> None:
    """The same runs, and the stopped ones resumed, in smaller micro-batches."""
    with known():
        for way in HALVES:
            how = {"micro_batch": tiny.MICRO_BATCH // 2, **options(way)}
            train(ranks, folder / f"followed {way} of 4", recipe, **how)
            path = folder / f"followed elsewhere {way}"
            train(ranks, path, recipe, resume="auto", **how)


SCENARIOS = (followed, followed_halves, followed_elsewhere)
