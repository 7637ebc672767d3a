"""What a run is given beside its recipe: a checkpoint to go on from, weights to start from, a
teacher's, label maps, and how much classes count by its images."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bigvit.checkpoint.load import verified
from bigvit.checkpoint.manifest import Manifest
from bigvit.checkpoint.teacher import TeacherWeights
from bigvit.checkpoint.weights import Unfit, fitted, read_init
from bigvit.data.class_weights import Weights, asks_for_labels, weights_for
from bigvit.data.index import shared
from bigvit.data.label_maps.form import BadMaps
from bigvit.data.label_maps.maps import LabelMaps
from bigvit.data.sources import Source
from bigvit.engines.build import Initial, outline
from bigvit.engines.teacher import Teaching, TooLarge, check_room
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Command, Recipe
from bigvit.training.start import Refused, Start, given_to, refuse_changes


def given_checkpoint(
    start: Start, ranks: Ranks, report: Callable[[str], None]
) -> tuple[Path, Manifest] | None:
    """The newest checkpoint that is what was written. Collective."""
    for reason in start.damaged:
        report(f"warning: {reason}; going back to {start.checkpoint}")
    seen = [start.checkpoint, *start.older] if start.checkpoint is not None else []
    rank_0s = ranks.handed("\n".join(map(str, seen)))
    paths = [Path(path) for path in rank_0s.split("\n") if path]
    if ranks.agree(not all(path.is_dir() for path in paths[:1])):
        raise Refused(
            f"not all ranks see {paths[0]}, as rank 0 does; it must be on a file system that all "
            "hosts share, with one path"
        )
    return verified(paths, ranks, lambda text: report(f"warning: {text}")) if paths else None


def check_data(
    index: dict[str, Any],
    found: tuple[Path, Manifest] | None,
    command: Command,
    ranks: Ranks,
    report: Callable[[str], None],
) -> None:
    """Refuse data that are not those of the checkpoint; of such as are allowed, say that a memory
    is of others. Collective."""
    with ranks.agree_on_error(Refused, raised=Refused):
        if ranks.rank == 0 and found is not None and (before := found[1].data) is not None:
            what = f"{found[0]} is of a run on other data"
            before, now = shared(before, index), shared(index, before)
            allowed = command.run.allow_change
            refuse_changes({"index": before}, {"index": now}, allowed, what)
            if before.get("train") != now.get("train") and asks_for_labels(command.recipe):
                report(
                    "warning: the memory of embeddings is of the training images that were there "
                    "before; each is forgotten by halves, whenever the image in its place is seen"
                )


def given_weights(command: Command, ranks: Ranks, report: Callable[[str], None]) -> Initial | None:
    """The weights that `--init` names, those that it lacks made anew. Collective."""
    options, recipe = command.run, command.recipe
    if options.init is None:
        return None
    ranks.at(f"reading --init {options.init}")
    given = read_init(options.init, options.init_ema, options.init_grid, ranks)
    task, grid = outline(recipe), recipe.model.grid(recipe.data.image_size)
    with ranks.agree_on_error(Unfit, raised=Unfit):
        kind = f"{command.name}'s {recipe.model.kind}"
        weights, done = fitted(given, task.model, grid, recipe.resampling, kind)
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
    before = found[1].teacher if found is not None else None
    other = f"another teacher than {options.teacher}"
    _refuse_another("teacher", other, before, digest, command, start, ranks)
    report(f"teacher {options.teacher}: {', '.join([*weights.notes, f'weights {digest}'])}")
    return teaching, digest


def given_maps(
    command: Command,
    start: Start,
    found: tuple[Path, Manifest] | None,
    source: Source,
    ranks: Ranks,
    report: Callable[[str], None],
) -> tuple[LabelMaps | None, str | None]:
    """The label maps that `--label-maps` names, if the recipe learns from some, which must be of
    the training images; and their digest, which is that of the run that is gone on with.
    Collective."""
    folder = command.run.label_maps
    if not command.recipe.maps or folder is None:
        return None, None
    ranks.at(f"reading --label-maps {folder}")
    maps = None
    with ranks.agree_on_error(BadMaps, raised=Refused):
        maps = LabelMaps(folder)
        if ranks.rank == 0:
            maps.check(source)
    assert maps is not None
    digest, *others = ranks.texts(maps.digest)
    if set(others) - {digest}:
        raise Refused(f"--label-maps {folder}: hosts see different ones; every host needs the same")
    before = found[1].label_maps if found is not None else None
    other = f"other label maps than {folder}"
    _refuse_another("label_maps", other, before, digest, command, start, ranks)
    cells, made_by = "{} x {}".format(*maps.form.cells), maps.form.teacher.name
    report(f"label maps {folder}: {cells} cells, top {maps.form.top}, made by {made_by}")
    return maps, digest


def given_class_weights(recipe: Recipe, source: Source, report: Callable[[str], None]) -> Weights:
    """What the recipe's objectives ask for by the number of each class's images, which every rank
    counts alike."""
    try:
        found = weights_for(recipe, source)
    except ValueError as error:
        raise Refused(str(error)) from None
    for asked, weights in found.items():
        if isinstance(asked, str):
            least, most = int(weights.argmin()), int(weights.argmax())
            report(
                f"class weights, {asked}: {weights[least]:.3g} ({source.classes[least]}) to "
                f"{weights[most]:.3g} ({source.classes[most]})"
            )
    return found


def _refuse_another(
    name: str,
    other: str,
    before: str | None,
    digest: str,
    command: Command,
    start: Start,
    ranks: Ranks,
) -> None:
    """Refuse what is not what the run was given before. Collective."""
    with ranks.agree_on_error(Refused, raised=Refused):
        if ranks.rank == 0 and (before := before or given_to(start.folder, name)) is not None:
            old, new = ({name: {"digest": each}} for each in (before, digest))
            what = f"{start.folder} holds a run with {other}"
            refuse_changes(old, new, command.run.allow_change, what)
