"""All that can be wrong with a training, found without torch, changing nothing."""

from importlib.util import find_spec
from pathlib import Path

from bigvit.data.check import check_data, check_maps
from bigvit.engines import check as engines
from bigvit.recipe import Command, Layout, Recipe, Run, batch_layout
from bigvit.recipe.bounds import allow
from bigvit.training.start import Start, plan_start


def check(command: Command, world: int, rank: int = 0) -> tuple[Layout, Start]:
    """Find all that can be wrong without torch, changing nothing. Checkpoints are read by rank 0.

    Raises:
        ValueError: says what was given, what is allowed and what to do.
    """
    recipe, run = command.recipe, command.run
    if run.evaluate_ema and recipe.ema is None:
        raise ValueError(
            "--evaluate-ema: this recipe keeps no average of the weights (ema is None); leave it "
            "out, or let a new run keep one by --ema 0.9999"
        )
    if run.evaluate_ema and not recipe.evaluated:
        raise ValueError(f"--evaluate-ema: {_not_evaluated(recipe)}; leave it out")
    if missing := [name for name in run.tracker if find_spec(name) is None]:
        raise ValueError(
            f"--tracker {missing[0]}: it is not installed; pip install {missing[0]}, or leave it "
            "out"
        )
    if run.augment_on == "device" and not recipe.data.augment_on_device:
        raise ValueError(
            "--augment-on device: this recipe has no 3-Augment, or erases after it, which data "
            "workers do; leave it out"
        )
    if run.profile is not None and run.profile > recipe.updates:
        raise ValueError(
            f"--profile {run.profile}: the training has {recipe.updates} updates; name one of them"
        )
    _check_best(command)
    layout = batch_layout(recipe, world, run.micro_batch)
    engines.check(recipe, layout, run)
    check_data(recipe.data, run)
    start = plan_start(command, judge=rank == 0)
    if start.checkpoint is None:
        _check_init(command)
    _check_teacher(command, start)
    check_maps(recipe, run.label_maps, command.name)
    return layout, start


def _not_evaluated(recipe: Recipe) -> str:
    """Why nothing is counted while a recipe trains."""
    if not recipe.data.tested:
        return "this recipe has no test images (data.test_images 0)"
    return "no objective of this recipe trains a classifier"


def _check_best(command: Command) -> None:
    run = command.run
    if run.on_jump != "rollback" and run.rollbacks != Run().rollbacks:
        raise ValueError(
            f"--rollbacks {run.rollbacks}: a run rolls back by --on-jump rollback alone; add that, "
            "or leave it out"
        )
    if (metric := run.keep_best) is None:
        if run.patience is not None:
            raise ValueError(
                f"--patience {run.patience}: better by what? Add --keep-best top1, or leave it out"
            )
        return
    if not command.recipe.evaluated:
        raise ValueError(f"--keep-best {metric}: {_not_evaluated(command.recipe)}; leave it out")
    known = command.recipe.metrics
    allow("--keep-best", metric, metric.removeprefix("ema_") in known, ", ".join(known))
    if metric.startswith("ema_") and not run.evaluate_ema:
        raise ValueError(
            f"--keep-best {metric}: it is of the average of the weights; add --evaluate-ema, or "
            f"take {metric.removeprefix('ema_')}"
        )


def _check_init(command: Command) -> None:
    run, wanted = command.run, command.recipe.starts_from
    if (init := run.init) is None:
        if wanted is not None:
            raise ValueError(
                f"{command.name} starts from the weights of {wanted}; give them by --init: a run, "
                "checkpoint, export, .safetensors or .pth file, or timm:NAME"
            )
        if run.init_ema or run.init_grid is not None:
            flag = "--init-ema" if run.init_ema else "--init-grid"
            raise ValueError(f"{flag}: there is no --init whose weights it is about; leave it out")
    elif wanted is None:
        raise ValueError(
            f"--init {init}: {command.name} trains from scratch; --starts-from NAME changes that"
        )
    else:
        _check_there("--init", init)


def _check_teacher(command: Command, start: Start) -> None:
    run = command.run
    if command.recipe.teacher is None:
        for flag, given in (
            ("--teacher", run.teacher is not None),
            ("--teacher-ema", run.teacher_ema),
            ("--teacher-sharding", run.teacher_sharding != "none"),
        ):
            if given:
                raise ValueError(f"{flag}: {command.name} has no teacher; leave it out")
    elif (teacher := run.teacher) is None:
        raise ValueError(
            f"{command.name} learns from a teacher; give its weights by --teacher: a run, "
            "checkpoint, export, .safetensors or .pth file, or timm:NAME"
        )
    else:
        _check_there("--teacher", teacher)
        own, path = start.folder.resolve(), Path(teacher).resolve()
        if own in (path, *path.parents):
            raise ValueError(
                f"--teacher {teacher}: it is the run itself ({start.folder}), which cannot be its "
                "own teacher; name another run"
            )


def _check_there(flag: str, named: str) -> None:
    """Refuse weights that are nowhere."""
    if named.startswith("timm:"):
        return
    if not Path(named).exists():
        raise ValueError(f"{flag} {named}: there is no such file or folder")
    if not Path(named).is_file() and not Path(named).is_dir():
        raise ValueError(f"{flag} {named}: it is neither a plain file nor a folder")
