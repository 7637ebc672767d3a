"""Weights that a run is given: those to start from, and its teacher's."""

from collections.abc import Callable
from pathlib import Path

import torch

from bigvit.checkpoint.manifest import Manifest
from bigvit.checkpoint.teacher import TeacherWeights
from bigvit.checkpoint.weights import Unfit, fitted, read_init
from bigvit.engines.build import Initial, outline
from bigvit.engines.teacher import Teaching, TooLarge, check_room
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Command
from bigvit.training.start import Refused, Start, refuse_changes, teacher_of


def given_weights(command: Command, ranks: Ranks, report: Callable[[str], None]) -> Initial | None:
    """The weights that `--init` names, those that it lacks made anew. Collective."""
    options, recipe = command.run, command.recipe
    if options.init is None:
        return None
    ranks.at(f"reading --init {options.init}")
    given = read_init(options.init, options.init_ema, options.init_grid, ranks)
    task, grid = outline(recipe), recipe.model.grid(recipe.data.image_size)
    with ranks.agree_on_error(Unfit, raised=Unfit):
        weights, done = fitted(given, task.model, grid, recipe.resampling)
    taken = {name: w for name, w in weights.items() if task.model.takes(name)}
    some = [f"{len(taken)} of {len(weights)} are taken"] * (len(taken) < len(weights))
    report(f"weights of {options.init}: {', '.join([*given.notes, str(done), *some])}")

    def initial(name: str) -> torch.Tensor:
        given = taken.get(name.removeprefix("model."))
        return task.initial_weight(name) if given is None else given.float()

    return initial


def given_teacher(
    command: Command,
    start: Start,
    found: tuple[Path, Manifest] | None,
    ranks: Ranks,
    report: Callable[[str], None],
) -> tuple[Teaching | None, str | None]:
    """The recipe's teacher, if it has one, with the weights that `--teacher` names; and a digest of
    these, which is that of the run that is gone on with. Collective."""
    options, recipe = command.run, command.recipe
    if recipe.teacher is None:
        return None, None
    ranks.at(f"reading --teacher {options.teacher}")
    sharded = options.teacher_sharding == "host"
    with ranks.agree_on_error(TooLarge, raised=Refused):
        check_room(recipe, ranks, sharded)
    teaching = Teaching(recipe, ranks, sharded)
    weights = TeacherWeights(options, recipe.teacher, teaching.model, ranks)
    digest = weights.each(teaching.put)
    with ranks.agree_on_error(Refused, raised=Refused):
        if ranks.rank == 0:
            before = found[1].teacher if found is not None else teacher_of(start.folder)
            if before is not None:
                old, new = ({"teacher": {"digest": each}} for each in (before, digest))
                what = f"{start.folder} holds a run with another teacher than {options.teacher}"
                refuse_changes(old, new, options.allow_change, what)
    report(f"teacher {options.teacher}: {', '.join([*weights.notes, f'weights {digest}'])}")
    return teaching, digest
