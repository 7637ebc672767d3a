"""The one place that knows every engine."""

from collections.abc import Callable
from datetime import timedelta

from bigvit.engines.engine import Engine
from bigvit.engines.ranks import Ranks, alone, join
from bigvit.engines.sharding import deepspeed_config
from bigvit.recipe import Layout, Recipe, Run
from bigvit.task import Task


def join_ranks(run: Run, timeout: timedelta) -> Ranks:
    """Connect the processes that the run's engine works with. Collective."""
    return alone() if run.engine == "single" else join(timeout)


def build_engine(
    recipe: Recipe,
    run: Run,
    cut: Layout,
    ranks: Ranks,
    prepare: Callable[[Task], None] | None = None,
) -> Engine:
    """The engine that the run asks for, with the recipe's initial weights. Collective.

    Args:
        prepare: changes the initial weights, before they are sharded.
    """

    def build_task() -> Task:
        task = Task(recipe)
        task.init_weights()
        if prepare is not None:
            prepare(task)
        return task

    if run.engine == "single":
        from bigvit.engines.single import SingleEngine

        return SingleEngine(build_task, recipe, ranks)
    from bigvit.engines.deepspeed import DeepSpeedEngine

    return DeepSpeedEngine(build_task, recipe, deepspeed_config(recipe, cut, run), ranks)
