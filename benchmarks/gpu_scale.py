"""How large the parts of benchmarks/gpu.py are, and what they build. Shapes: B images."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import torch

from benchmarks.measure import interleaved
from bigvit.data.batch import Batch
from bigvit.data.prepare import Prepare
from bigvit.engines.build import fill, outline
from bigvit.engines.engine import Pending
from bigvit.engines.single import SingleEngine
from bigvit.ranks.joining import alone
from bigvit.recipe import Recipe
from bigvit.recipe.find import find_recipe
from bigvit.task import Task


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    device: torch.device
    small: bool
    h: Recipe
    h52: Recipe
    batches: tuple[int, int]
    image: int
    rounds: int
    deadline: float

    @property
    def late(self) -> bool:
        """Whether there is no time for another part."""
        return time.monotonic() > self.deadline


def scale(small: bool, seconds: float) -> Scale:
    """ViT-H/14 at 126 px and H-52; on a CPU both tiny."""
    device = alone().device
    small = small or device.type != "cuda"
    h, h52 = (_recipe(name) for name in ("deit3_h14_in1k_126", "deit3_h52_14_in1k_126"))
    if small:
        h = replace(h, model=replace(h.model, embed_dim=64, depth=2, num_heads=2))
        h52 = replace(h52, model=replace(h52.model, embed_dim=64, depth=3, num_heads=2))
    batches = (8, 16) if small else (64, 256)
    rounds, deadline = 2 if small else 10, time.monotonic() + seconds
    return Scale(device, small, h, h52, batches, 126, rounds, deadline)


def _recipe(name: str) -> Recipe:
    recipe = find_recipe(name)[1]
    return replace(recipe, ema=0.9999, data=replace(recipe.data, mix=None, repeats=1))


def engine(s: Scale, recipe: Recipe, share: float = 0.0, compiled: bool = True) -> SingleEngine:
    """One process, with blocks compiled on a GPU."""

    def build() -> Task:
        task = Task(recipe)
        task.model.recompute(share)
        if compiled and s.device.type == "cuda":
            task.model.compile_blocks()
        return task

    made = SingleEngine(build, recipe, alone())
    fill(made, outline(recipe).initial_weight)
    return made


def pending(s: Scale, task: Task, one: Batch) -> Pending:
    return partial(Prepare(task.recipe, s.device), one)


def seconds(s: Scale, runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each, A B A B, after two rounds that compile."""

    def clock() -> float:
        if s.device.type != "cpu":
            torch.accelerator.synchronize()
        return time.perf_counter()

    found = interleaved(runs, s.rounds, warmup=2, clock=clock)
    return {name: median(values) for name, values in found.items()}


def undropped(recipe: Recipe) -> Recipe:
    drop = replace(recipe.model.drop_path, rate=0.0)
    return replace(recipe, model=replace(recipe.model, drop_path=drop))
