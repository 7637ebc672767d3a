"""The one place that knows every engine."""

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from bigvit.engines.arrangement import arrangement
from bigvit.engines.deepspeed.config import deepspeed_config
from bigvit.engines.engine import Engine
from bigvit.engines.kept import KEPT, begin
from bigvit.engines.loss_scale import LossScale
from bigvit.optim.state import MOMENTS
from bigvit.ranks.joining import Ranks, alone, meet
from bigvit.recipe import Layout, Recipe, Run
from bigvit.task import Task

Initial = Callable[[str], Tensor]
"""The initial value of a parameter of the task, whole and in float32, by its name."""


def meet_ranks(run: Run) -> Ranks:
    """The processes that the run's engine works with, when all have come.

    Raises:
        NotMet: not all came.
    """
    if run.engine == "single":
        return alone()
    # slow imports come before the ranks wait for each other
    if run.engine == "deepspeed":
        if not torch.accelerator.is_available():
            os.environ.setdefault("DS_ACCELERATOR", "cpu")  # it looks when it is imported
        from bigvit.engines.deepspeed.before import prepare

        prepare()
    else:
        import_module(f"bigvit.engines.{run.engine}")
    return meet(run.timeout)


def build_engine(
    recipe: Recipe, run: Run, layout: Layout, ranks: Ranks, initial: Initial | None = None
) -> Engine:
    """The engine that the run asks for, with initial weights in full precision. Collective.

    Args:
        initial: weights to start from; those of the recipe's seed where it is left out.
    """

    def build() -> Task:
        task = Task(recipe)
        task.model.recompute(run.checkpoint_activations)
        if run.compile:
            task.model.compile_blocks()  # after `recompute`, which it must see
            if task.asked:
                task.follower.model.compile_blocks()
        return task

    first = outline(recipe)  # timm's models are made here: within `zero.Init` they cannot be
    first.model.check()
    engine: Engine
    match run.engine:
        case "single":
            from bigvit.engines.single import SingleEngine

            engine = SingleEngine(build, recipe, ranks)
        case "deepspeed":
            from bigvit.engines.deepspeed.engine import DeepSpeedEngine

            engine = DeepSpeedEngine(build, recipe, deepspeed_config(recipe, layout, run), ranks)
        case "fsdp2":
            from bigvit.engines.fsdp2 import FSDP2Engine

            engine = FSDP2Engine(build, recipe, arrangement(run, layout), ranks)
        case "fairscale":
            from bigvit.engines.fairscale import FairscaleEngine

            engine = FairscaleEngine(build, recipe, arrangement(run, layout), ranks)
    fill(engine, initial or first.initial_weight)
    return engine


def check_model(recipe: Recipe) -> None:
    """Refuse a model that cannot be trained exactly.

    Raises:
        ValueError: says what, and why.
    """
    outline(recipe).model.check()


def outline(recipe: Recipe) -> Task:
    """The recipe's task without memory: names, shapes and initial weights can be asked for."""
    with torch.device("meta"):
        return Task(recipe)


@torch.no_grad()
def fill(engine: Engine, initial: Initial, scalars: dict[str, Any] | None = None) -> None:
    """Give a rank's slices their initial values, moments zeros, one whole tensor at a time.
    Whatever the stage and the number of ranks, they are not rounded to the working precision on
    their way.

    Args:
        scalars: of an engine that has trained: what it begins with again.
    """
    name, weight = "", torch.empty(0)
    for part in engine.slices():
        if part.kind in MOMENTS:  # DeepSpeed may have stepped while it was built, and decayed
            part.view.zero_()
        elif part.kind in ("weight", "ema", "buffer"):
            if part.name != name:
                name, weight = part.name, initial(part.name).reshape(-1)
            part.view.copy_(weight[part.start : part.stop])
        elif part.kind == KEPT:
            begin(engine.task, part)
    engine.loaded(engine.scalars() if scalars is None else {"optimizer_steps": 0, **scalars})


@torch.no_grad()
def restart(engine: Engine, recipe: Recipe, initial: Initial | None = None) -> None:
    """Give an engine that has trained the state that `build_engine` left it with. Collective."""
    fresh = LossScale(recipe.precision == "fp16")
    fill(engine, initial or outline(recipe).initial_weight, fresh.scalars())
