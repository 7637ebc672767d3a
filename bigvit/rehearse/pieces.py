# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""What every rank holds of every tensor, by formulas that engines are compared with."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bigvit.engines.arrangement import NAMED
from bigvit.engines.build import outline
from bigvit.engines.kept import KEPT
from bigvit.optim.groups import matrices, parameter_groups
from bigvit.plan.cuts import owners, share, zero_of
from bigvit.plan.kept import memories
from bigvit.recipe import SGD, Dino, Grafit, Layout, Recipe, Run
from bigvit.task import Task


class Piece(NamedTuple):
    """A rank's part of a tensor, as `Slice` has it."""

    name: str
    kind: str
    shape: tuple[int, ...]
    start: int
    stop: int
    writer: bool


class _Parameter(NamedTuple):
    name: str
    size: int


def _kept(task: Task, recipe: Recipe) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """What objectives keep: its name, its shape, and whether its rows are cut over the ranks."""
    found = memories(recipe)
    for name, each in zip(task.names, recipe.objectives, strict=True):
        if isinstance(each, Grafit) and each.knn:
            yield f"heads.{name}.memory", tuple(next(found)), True
        elif isinstance(each, Dino):
            yield f"heads.{name}.centre", (each.outputs,), False


class Pieces:
    """A recipe's tensors on so many ranks."""

    def __init__(self, recipe: Recipe, layout: Layout, run: Run, per_node: int) -> None:
        self.run, self.world, self.per_node = run, layout.world, per_node
        task = outline(recipe)
        named = task.own_parameters()
        self.shapes = {name: tuple(p.shape) for name, p in named.items()}
        self.statistics = {name: tuple(b.shape) for name, b in task.statistics().items()}
        self.sizes = {name: p.numel() for name, p in named.items()}
        trained = {name for name, p in named.items() if p.requires_grad}
        self.frozen = [name for name in named if name not in trained]
        names = {id(p): name for name, p in named.items()}
        groups = parameter_groups(named, trained, task, recipe)
        self.groups = [[names[id(p)] for p in group["params"]] for group in groups]
        self.trained = [name for group in self.groups for name in group]
        hidden, average = (
            matrices(task, recipe, self.shapes),
            () if recipe.ema is None else ("ema",),
        )
        self.kinds: dict[str, tuple[str, ...]] = {name: ("weight",) for name in self.frozen}
        single = isinstance(recipe.optim, SGD)
        for name in self.trained:
            squares = () if single or name in hidden else ("exp_avg_sq",)
            self.kinds[name] = ("weight", "exp_avg", *squares, *average)
        self.kept = list(_kept(task, recipe))

    def of(self, rank: int) -> Iterator[Piece]:
        """Those of a rank."""
        for name, shape in self.statistics.items():
            yield Piece(name, "buffer", shape, 0, math.prod(shape), rank == 0)
        for name, shape, cut in self.kept:
            rows = (rank, rank + 1) if cut else (0, self.world)
            start, stop = (math.prod(shape[1:]) * (r * shape[0] // self.world) for r in rows)
            if start < stop:
                yield Piece(name, KEPT, shape, start, stop, cut or rank == 0)
        for name, start, stop, writer in self._cut(rank):
            if start < stop:
                for kind in self.kinds[name]:
                    yield Piece(name, kind, self.shapes[name], start, stop, writer)

    def _cut(self, rank: int) -> Iterator[tuple[str, int, int, bool]]:
        """(name, first element, one past the last, whether this rank saves it)."""
        everything = list(self.sizes)
        match self.run.engine:
            case "fsdp2":
                yield from self._rows(rank)
            case "fairscale":
                parts = [[_Parameter(n, self.sizes[n]) for n in group] for group in self.groups]
                mine: Sequence[_Parameter] = owners(parts, self.world)[rank]  # type: ignore
                yield from ((name, 0, size, True) for name, size in mine)
                yield from self._whole(self.frozen, everything, rank)
            case "single":
                yield from self._whole(everything, everything, 0, world=1)
            case "deepspeed":
                zero = zero_of(self.run)
                if zero["stage"] == 3:
                    yield from self._even(rank)
                    return
                yield from self._whole(self.frozen, self.frozen, rank)
                if zero["stage"] == 0:
                    yield from self._whole(self.trained, self.trained, rank)
                else:
                    yield from self._flat(rank, zero["round_robin_gradients"])

    def _whole(
        self, some: Sequence[str], among: Sequence[str], rank: int, world: int | None = None
    ) -> Iterator[tuple[str, int, int, bool]]:
        """Every rank has them; they save them in turn, by their number among others."""
        numbers = {name: number for number, name in enumerate(among)}
        for name in some:
            writer = numbers[name] % (world or self.world) == rank
            yield name, 0, self.sizes[name], writer

    def _even(self, rank: int) -> Iterator[tuple[str, int, int, bool]]:
        """Each parameter is cut evenly."""
        for name, size in self.sizes.items():
            length = -(-size // self.world)
            yield name, rank * length, min(size, (rank + 1) * length), True

    def _flat(self, rank: int, in_turns: bool) -> Iterator[tuple[str, int, int, bool]]:
        """Each group is laid end to end, and that is cut evenly."""
        for group in self.groups:
            if in_turns:
                group = [name for i in range(self.world) for name in group[i :: self.world]]
            length = share(sum(self.sizes[name] for name in group), self.world)
            first, at = rank * length, 0
            for name in group:
                start, stop = max(0, first - at), min(self.sizes[name], first + length - at)
                yield name, start, stop, True
                at += self.sizes[name]

    def _rows(self, rank: int) -> Iterator[tuple[str, int, int, bool]]:
        """Each parameter is cut along its first dimension, over all ranks or those of a host."""
        inside = NAMED["fsdp2"][self.run.arrangement].within_hosts
        shards = self.per_node if inside else self.world
        for name, shape in self.shapes.items():
            rows = -(-shape[0] // shards)
            width = self.sizes[name] // shape[0]
            start, stop = (
                min(at * rows, shape[0]) * width for at in (rank % shards, rank % shards + 1)
            )
            yield name, start, stop, rank < shards
