"""The training loop. It knows no model, no loss and no engine by name."""

import time
from collections.abc import Callable
from typing import Literal

from bigvit.checkpoint.folder import RunFolder, Start
from bigvit.checkpoint.load import load
from bigvit.checkpoint.save import save
from bigvit.checkpoint.weights import fit, read_init
from bigvit.data.bad import BadImages
from bigvit.data.loader import train_batches, workers_for
from bigvit.data.sources import open_source
from bigvit.engines.build import build_engine
from bigvit.engines.engine import Engine, NotFinite
from bigvit.engines.ranks import Ranks
from bigvit.evaluate import evaluate
from bigvit.progress import Progress
from bigvit.recipe import Command, Layout
from bigvit.recipe.store import to_json
from bigvit.task import Task

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
        NotFinite, NotSaved, TooManyBad: training ended early; the last checkpoint is whole.
    """

    def prepare(task: Task) -> None:
        if command.run.init is None or start.checkpoint is not None:
            return
        grid = command.recipe.model.grid(command.recipe.data.image_size)
        fitted = fit(read_init(command.run.init), task.model, grid)
        if folder is not None:
            print(f"weights of {command.run.init}: {fitted}", flush=True)

    engine = build_engine(command.recipe, command.run, cut, ranks, prepare)
    first = load(engine, start.checkpoint).update if start.checkpoint else 0
    progress = Progress(command.recipe, first, folder)
    try:
        return _train(command, cut, start, engine, first, progress, stop_requested)
    finally:
        progress.close()


def _train(
    command: Command,
    cut: Layout,
    start: Start,
    engine: Engine,
    first: int,
    progress: Progress,
    stop_requested: Callable[[], bool],
) -> Outcome:
    recipe, run, ranks = command.recipe, command.run, engine.ranks
    train_set = open_source(recipe.data, "train", run.data_root)
    test_set = open_source(recipe.data, "test", run.data_root)
    progress.classes(train_set.classes)
    workers, bad = workers_for(run.workers), BadImages(train_set, run.bad_images, ranks)
    batches = train_batches(train_set, recipe, cut, ranks.rank, workers, first, engine.task.draws)
    last, per_epoch, update = recipe.updates, recipe.updates_per_epoch, first
    while update < last:
        asked = time.perf_counter()
        micro = next(batches)
        waited = time.perf_counter() - asked
        try:
            bad.saw(micro)
        finally:
            progress.unreadable(bad.new_names())
        try:
            info = engine.update(micro, recipe.lr(update))
        except NotFinite as error:
            raise NotFinite(f"update {update + 1}: {error}") from None
        update += 1
        progress.updated(update, info, waited, log=update % run.log_every == 0 or update == last)
        if update == last or update % (per_epoch * run.evaluate_every) == 0:
            counts = evaluate(
                engine.predict, test_set, recipe.data, cut.micro_batch, ranks, workers
            )
            progress.unreadable(counts.bad)
            progress.evaluated(update, counts)
        stop = ranks.agree(stop_requested() or update == run.stop_after)
        if stop or update == last or update % run.checkpoint_every == 0:
            save(engine, start.folder / "checkpoints", update, to_json(recipe), run.keep)
            progress.saved(update)
        if stop and update < last:
            return "requeue"
    return "done"
