"""The training loop. It knows no model, no loss and no engine by name."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NoReturn

import torch

from bigvit.checkpoint.folder import RunFolder, Start
from bigvit.checkpoint.load import load
from bigvit.checkpoint.save import save
from bigvit.checkpoint.weights import fitted, read_init
from bigvit.data.bad import BadImages, gather
from bigvit.data.loader import train_batches, workers_for
from bigvit.data.sources import Source, open_source
from bigvit.engines.build import Initial, build_engine, outline
from bigvit.engines.ema import averaged
from bigvit.engines.engine import Engine, NotFinite
from bigvit.engines.ranks import Ranks
from bigvit.evaluate import evaluate
from bigvit.loss_guard import LossGuard, LossJumped
from bigvit.progress import Place, Progress
from bigvit.recipe import Command, Layout
from bigvit.recipe.store import left_out, to_json
from bigvit.task import Batch

Outcome = Literal["done", "requeue"]


def run(
    command: Command,
    cut: Layout,
    start: Start,
    ranks: Ranks,
    folder: RunFolder | None,
    stop_requested: Callable[[], bool],
) -> Outcome:
    """Build the engine, take up the checkpoint if there is one, and train. Collective.

    Args:
        folder: where rank 0 writes what happens; None on the others.
        stop_requested: asked on every rank after every update; one rank's yes stops all.

    Raises:
        Damaged: the checkpoint is not whole; nothing was changed.
        Unfit: the weights to start from cannot be read, or are not of this model.
        NotFinite, LossJumped, NotSaved, TooManyBad: training ended early; the last checkpoint is
            whole.
    """
    initial = None if start.checkpoint is not None else _given(command, folder)
    model = command.recipe.model
    if folder is not None:
        print(model.drop_path.summary(model.branches), flush=True)
    engine = build_engine(command.recipe, command.run, cut, ranks, initial)
    first = Place(0, 0)
    if start.checkpoint is not None:
        manifest = load(engine, start.checkpoint)
        if folder is not None and (older := left_out(manifest.recipe)):
            print(f"{start.checkpoint}: {older}", flush=True)
        first = Place(manifest.batch, manifest.update)
    progress = Progress(command.recipe, first, folder)
    try:
        return _train(command, cut, start, engine, first, progress, stop_requested)
    finally:
        progress.close()


def _given(command: Command, folder: RunFolder | None) -> Initial | None:
    """The weights that `--init` names, those that it lacks made anew."""
    init, recipe = command.run.init, command.recipe
    if init is None:
        return None
    task = outline(recipe)
    weights, done = fitted(read_init(init), task.model, recipe.model.grid(recipe.data.image_size))
    taken = {name: w for name, w in weights.items() if task.model.takes(name)}
    if folder is not None:
        some = "" if len(taken) == len(weights) else f", {len(taken)} of {len(weights)} are taken"
        print(f"weights of {init}: {done}{some}", flush=True)

    def initial(name: str) -> torch.Tensor:
        given = taken.get(name.removeprefix("model."))
        return task.initial_weight(name) if given is None else given.float()

    return initial


def _train(
    command: Command,
    cut: Layout,
    start: Start,
    engine: Engine,
    first: Place,
    progress: Progress,
    stop_requested: Callable[[], bool],
) -> Outcome:
    recipe, run, ranks = command.recipe, command.run, engine.ranks
    train_set = open_source(recipe.data, "train", run.data_root)
    test_set = open_source(recipe.data, "test", run.data_root)
    progress.classes(train_set.classes)
    workers, bad = workers_for(run.workers), BadImages(train_set, run.bad_images, ranks)
    batches = train_batches(
        train_set, recipe, cut, ranks.rank, workers, first.batch, engine.task.draws
    )
    count = partial(
        evaluate, engine.predict, test_set, recipe.data, cut.micro_batch, ranks, workers
    )
    guard = LossGuard(run.loss_jump) if run.loss_jump is not None else None
    last, per_epoch, place = recipe.updates, recipe.updates_per_epoch, first
    while place.batch < last:
        asked = time.perf_counter()
        micro = next(batches)
        waited = time.perf_counter() - asked
        try:
            bad.saw(micro)
        finally:
            progress.unreadable(bad.new_names())
        batch, lr = place.batch + 1, recipe.lr(place.update)
        log = batch % run.log_every == 0 or batch == last
        try:
            info = engine.update(micro, lr, guard, log and run.log_norms)
        except (NotFinite, LossJumped) as error:
            _explain(error, place, micro, train_set, ranks, progress)
        place = Place(batch, place.update + info.applied)
        progress.updated(place, lr, info, waited, log)
        if batch == last or batch % (per_epoch * run.evaluate_every) == 0:
            counts, of_average = count(), None
            if run.evaluate_ema:
                with averaged(engine):
                    of_average = count()
            progress.unreadable(counts.bad)
            progress.evaluated(place, counts, of_average)
        stop = ranks.agree(stop_requested() or batch == run.stop_after)
        if stop or batch == last or batch % run.checkpoint_every == 0:
            skipped = batch - place.update
            save(engine, start.folder / "checkpoints", batch, to_json(recipe), run.keep, skipped)
            progress.saved(place)
        if stop and batch < last:
            return "requeue"
    return "done"


def _explain(
    error: NotFinite | LossJumped,
    place: Place,
    micro: Sequence[Batch],
    source: Source,
    ranks: Ranks,
    progress: Progress,
) -> NoReturn:
    """Say which batch an error is about, with its images and where to go on from. Collective."""
    ids = gather(torch.cat([batch.ids for batch in micro]), ranks).tolist()
    there = progress.stopped([source.name(id) for id in ids])
    raise type(error)(f"update {place.batch + 1}: {error}{there}") from None
