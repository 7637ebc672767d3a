"""The training loop. It knows no model, no loss and no engine by name."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal, TypeVar

from bigvit.checkpoint.load import fill
from bigvit.checkpoint.save import NotSaved, Saver
from bigvit.checkpoint.skipped import parse_batches
from bigvit.data import photo
from bigvit.data.bad import BadImages, TooManyBad
from bigvit.data.batch import Batch
from bigvit.data.class_weights import Weights, labels_for
from bigvit.data.label_maps.maps import LabelMaps
from bigvit.data.loader import train_batches
from bigvit.data.prepare import Prepare
from bigvit.data.sources import Source, open_splits
from bigvit.data.workers import workers_for
from bigvit.dense.evaluators import evaluator
from bigvit.engines import deterministic
from bigvit.engines.build import build_engine, restart
from bigvit.engines.ema import averaged
from bigvit.engines.engine import Engine, NotFinite
from bigvit.engines.teacher import Teaching
from bigvit.evaluate import Interrupted
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Command, Digits, Layout
from bigvit.recipe.store import left_out, to_json
from bigvit.training.ahead import Agreed, Ahead, RankFailed, raise_on_all
from bigvit.training.best import Best
from bigvit.training.foreseen import device_name, foreseen
from bigvit.training.given import (
    check_data,
    given_checkpoint,
    given_class_weights,
    given_maps,
    given_teacher,
    given_weights,
)
from bigvit.training.loss_guard import LossGuard, LossJumped
from bigvit.training.profile import Profile
from bigvit.training.progress import Place, Progress
from bigvit.training.rollback import Met, Rollbacks, taken_up
from bigvit.training.run_folder import RunFolder
from bigvit.training.same_hosts import compare_hosts
from bigvit.training.spoken import beginning, taken_from
from bigvit.training.start import Refused, Start

Outcome = Literal["done", "requeue"]
T = TypeVar("T")


def run(
    command: Command,
    layout: Layout,
    start: Start,
    ranks: Ranks,
    folder: RunFolder | None,
    stop_requested: Callable[[], bool],
) -> Outcome:
    """Build the engine, take up the checkpoint if there is one, and train. Collective.

    Args:
        folder: where rank 0 writes what happens; None on the others.
        stop_requested: asked on every rank, often; one rank's yes stops all.

    Raises:
        Damaged: no checkpoint is whole; nothing was changed.
        Refused: the run cannot go on from the checkpoint with these data; nothing was changed.
        Unfit: the weights to start from cannot be read, or are not of this model.
        NotFinite, LossJumped, NotSaved, TooManyBad, RankFailed: training ended early; the last
            checkpoint is whole.
    """
    recipe, options = command.recipe, command.run
    report = partial(print, flush=True) if folder is not None else lambda _: None
    found = given_checkpoint(start, ranks, report)
    train_set, test_set = open_splits(recipe.data, options.data_root, options.classes_map)
    first, due, losses = Place(0, 0), False, ()
    if found is not None:
        manifest = found[1]
        first, losses = Place(manifest.batch, manifest.update), manifest.losses
        due = manifest.evaluation_due and test_set is not None
    index = compare_hosts(recipe, train_set, test_set, first.batch, ranks)
    check_data(index, found, command, ranks, report)
    weights = given_class_weights(recipe, train_set, report)
    teaching, its = given_teacher(command, start, found, ranks, report)
    maps, theirs = given_maps(command, start, found, train_set, ranks, report)
    digests = {"teacher": its, "label_maps": theirs}
    given = {name: digest for name, digest in digests.items() if digest is not None}
    initial = given_weights(command, ranks, report) if found is None else None
    report(recipe.model.drop_path.summary(recipe.model.branches))
    if options.deterministic:
        report(deterministic.cost(ranks.device.type))
    if not recipe.answers:
        test_set = None
        report(
            "no objective trains the classifier, so nothing is evaluated; `bigvit neighbours RUN` "
            "says what the features are worth"
        )
    elif test_set is None:
        report("the recipe has no test images (data.test_images 0): nothing is evaluated")
    if not isinstance(recipe.data, Digits) and (slow := photo.without()):
        report(f"warning: {slow}")
    ranks.at("building the engine")
    engine = build_engine(recipe, options, layout, ranks, initial)
    if found is not None:
        path, manifest = found
        ranks.at(f"reading {path}")
        fill(engine, path, manifest)
        if older := left_out(manifest.recipe):
            report(f"{path}: {older}")
    unwritable = f"--run-dir {start.folder} cannot be written to"
    with ranks.agree_on_error(OSError, raised=lambda why: Refused(f"{unwritable}: {why}")):
        if folder is not None:
            folder.accept(given, found[0] if found is not None else None)
    wanted = parse_batches(options.skip_batches) if options.skip_batches is not None else ()
    never = taken_up(start.folder, wanted, None if found is None else found[1], ranks)
    saver = Saver(
        engine,
        start.folder / "checkpoints",
        to_json(recipe),
        options.keep,
        options.keep_every,
        index,
        options.background_save,
        given,
    )
    expected = foreseen(command, layout, ranks, first.batch) if folder is not None else None
    if folder is not None:
        given_up = (None, 0) if found is None else (found[0], found[1].update)
        counts = len(train_set), 0 if test_set is None else len(test_set), len(train_set.classes)
        began = taken_from(*given_up, folder.state, options.init)
        device, planned = device_name(ranks.device), expected.choice if expected else None
        where = len({*ranks.hosts}), counts, began, planned, start.folder
        report(beginning(command, layout, device, *where))
    watch = teaching.watch if teaching is not None else None
    progress = Progress(recipe, first, folder, due, options.tracker, expected, watch)
    progress.classes(train_set.classes)
    profile = Profile(options.profile, folder.path if folder is not None else None, progress)
    again = partial(restart, engine, recipe, initial) if found is None else None
    rollbacks = Rollbacks(command, engine, saver, train_set, progress, never, again)
    try:
        training = Training(
            *(command, layout, engine, saver, train_set, test_set, progress, profile),
            *(stop_requested, rollbacks, losses, teaching, maps, weights),
        )
        is_saved = found is not None and found[0].parent == saver.folder
        return training.run(first, is_saved, due)
    except (RankFailed, TooManyBad):
        with suppress(NotSaved):
            saver.wait()  # what is on its way is whole then
        raise
    finally:
        profile.close()
        progress.close()


class Training:
    """A run on its way: batch after batch, with evaluations and checkpoints between them."""

    def __init__(
        self,
        command: Command,
        layout: Layout,
        engine: Engine,
        saver: Saver,
        train_set: Source,
        test_set: Source | None,
        progress: Progress,
        profile: Profile,
        stop_requested: Callable[[], bool],
        rollbacks: Rollbacks,
        losses: Sequence[float] = (),
        teaching: Teaching | None = None,
        maps: LabelMaps | None = None,
        weights: Weights | None = None,
    ) -> None:
        """Args:
        losses: of the updates before, which the loss guard looks back at.
        weights: of classes.
        """
        self.recipe, self.options, self.layout = command.recipe, command.run, layout
        self.engine, self.saver, self.ranks = engine, saver, engine.ranks
        labels = labels_for(self.recipe, train_set)
        self.prepare = Prepare(self.recipe, self.ranks.device, teaching, weights, labels)
        self.train_set, self.test_set, self.maps = train_set, test_set, maps
        self.progress, self.profile = progress, profile
        self.stop_requested, self.rollbacks = stop_requested, rollbacks
        self.workers = workers_for(command.run.workers)
        self.best = Best(command.run, saver.folder.parent, self.ranks)
        self.losses = losses

    def _begin(self, place: Place, due: bool, losses: Sequence[float]) -> None:
        """What a start knows of what came before it. Collective."""
        self.best.begin(place.batch, due)
        self.bad = BadImages(self.train_set, self.options.bad_images, self.ranks)
        jump = self.options.loss_jump
        self.guard = LossGuard(jump, losses) if jump is not None else None

    def run(self, first: Place, is_saved: bool, due: bool) -> Outcome:
        """Train from a place on. Collective.

        Args:
            is_saved: whether a checkpoint of that place is in the run folder.
            due: whether the evaluation there was left for now.
        """
        losses = self.losses
        while True:
            self._begin(first, due, losses)
            batches = self._batches(first)
            try:
                return self._run(batches, first, is_saved, due)
            except Met as met:
                batches.close()  # its data processes end before others begin
                back = self.rollbacks.after(met, self.guard)
            first, is_saved = back.place, back.saved
            due, losses = back.due and self.test_set is not None, back.losses

    def _batches(self, first: Place) -> Generator[list[Batch]]:
        options = self.options
        on_device = options.augment_on == "device" or (
            options.augment_on == "auto" and self.ranks.device.type != "cpu"
        )
        return train_batches(
            self.train_set,
            self.recipe,
            self.layout,
            self.ranks.rank,
            self.workers,
            first.batch,
            self.engine.task.draws,
            on_device,
            self.maps,
            self.rollbacks.batches,
        )

    def _run(
        self, batches: Iterator[list[Batch]], first: Place, is_saved: bool, due: bool
    ) -> Outcome:
        recipe, options, place = self.recipe, self.options, first
        ahead = self._fetch(batches, first)
        while True:
            agreed = self._heeded(ahead.agreed(), f"reading batch {place.batch + 1}", ahead.error)
            stop = bool(agreed.stop)
            if due and not stop:
                due = stop = not self._evaluated(place)
            ended = self._ended(place)
            last = stop or self._ends(place)
            if last:
                self._settle(self.saver.wait)
            save_due = place.batch > first.batch and (
                place.batch % options.checkpoint_every == 0 or self.best.is_at(place.batch)
            )
            if not is_saved and (last or save_due):
                self.ranks.at(f"saving update {place.batch}")
                saving = partial(self._save, place, due)
                saving() if last else self._settle(saving)
                is_saved = True
            if last:
                self.saver.wait()
                self._report_saved()
                if self.best.over:
                    self.progress.ends(self.best.said())
                return "done" if ended and not due else "requeue"
            place, ahead = self._update(place, ahead.micro, agreed.bad, batches)
            is_saved, every = False, recipe.updates_per_epoch * options.evaluate_every
            due = place.batch == recipe.updates or place.batch % every == 0
            due = due and self.test_set is not None

    def _ends(self, place: Place) -> bool:
        """Whether training ends here by itself."""
        return place.batch == self.options.stop_after or self._ended(place)

    def _ended(self, place: Place) -> bool:
        """Whether training is done."""
        return place.batch == self.recipe.updates or self.best.over

    def _save(self, place: Place, due: bool) -> None:
        losses = self.guard.losses if self.guard is not None else ()
        self.saver.best = self.best.order
        never = sorted(self.rollbacks.batches)
        self.saver.save(place.batch, place.batch - place.update, due, tuple(losses), never)

    def _fetch(self, batches: Iterator[list[Batch]], place: Place) -> Ahead:
        """Take the batch that comes after a place, and begin to agree on what the ranks know by
        now. The update before is computed meanwhile, so nobody waits; a request to stop that comes
        later than this is known after the next one."""
        micro, error = list[Batch](), None
        if not self._ends(place):
            self.ranks.at(f"reading batch {place.batch + 1}")
            asked = time.perf_counter()
            try:
                micro = next(batches)
            except Exception as failure:
                error = failure
            self.progress.waits(time.perf_counter() - asked)
        agreed = Agreed(
            self.stop_requested(), self.saver.failed, error is not None, self.bad.flag(micro)
        )
        return Ahead(micro, error, self.ranks.agree_later(agreed))

    def _heeded(self, flags: Sequence[int], doing: str, error: Exception | None) -> Agreed:
        """What the ranks have agreed on. Collective; also finds out that a checkpoint cannot be
        written, or that a rank's images cannot be read, and why where it is this one's."""
        agreed = Agreed(*flags)
        if agreed.unsaved:
            self._settle(self.saver.wait)
        self._report_saved()
        if agreed.failed:
            raise_on_all(self.ranks, doing, error)
        return agreed

    def _settle(self, saving: Callable[[], object]) -> None:
        """Save, or wait for it; a failure ends the run, or is only said, as chosen."""
        try:
            saving()
        except NotSaved as error:
            if self.options.save_failure == "stop":
                raise
            self.progress.warn(str(error))

    def _report_saved(self) -> None:
        while self.saver.saved:
            self.progress.saved(self.saver.saved.pop(0))
        while self.saver.warnings:
            self.progress.warn(self.saver.warnings.pop(0))

    def _update(
        self, place: Place, micro: Sequence[Batch], bad: int, batches: Iterator[list[Batch]]
    ) -> tuple[Place, Ahead]:
        """Consume a batch, and fetch the next.

        Args:
            bad: the ranks' flag of its bad images.
        """
        try:
            self.bad.saw(micro, bad)
        finally:
            self.progress.unreadable(self.bad.new_names())
        batch, rates = place.batch + 1, self.recipe.rates(place.update)
        if batch in self.rollbacks.batches:
            after = Place(batch, place.update)
            self.progress.skipped(after)
            return after, self._fetch(batches, after)
        self.profile.begins(batch)
        ahead = self._fetch(batches, Place(batch, place.update))
        log = batch % self.options.log_every == 0 or batch == self.recipe.updates
        self.progress.consumes(micro)
        self.ranks.at(f"update {batch}")
        try:
            inputs = self.prepare.later(micro, ahead.micro)
            norms = log and self.options.log_norms
            info = self.engine.update(inputs, rates, self.guard, norms)
        except (NotFinite, LossJumped) as error:
            ahead.agreed()  # begun on every rank, and needed by none
            raise Met(error, place, micro) from None
        place = Place(batch, place.update + info.applied)
        self.progress.updated(place, rates.lr, info, log)
        return place, ahead

    def _evaluated(self, place: Place) -> bool:
        """Count what is right of the test images; false where a request to stop came first."""
        assert self.test_set is not None
        self.ranks.at(f"the evaluation after update {place.batch}")
        count = partial(
            evaluator(self.recipe.data),
            self.engine.predictions,
            self.test_set,
            self.recipe.data,
            self.layout.micro_batch,
            self.ranks,
            self.workers,
            agreed=self._next_of_evaluation,
        )
        try:
            counts, of_average = count(), None
            if self.options.evaluate_ema:
                with averaged(self.engine):
                    of_average = count()
        except Interrupted:
            return False
        self.progress.unreadable(counts.bad)
        self.progress.evaluated(place, counts, of_average)
        self.best.add(place.batch, counts, of_average)
        return True

    def _next_of_evaluation(self, fetch: Callable[[], T | None]) -> T | None:
        """What to predict next, unless a rank wants to stop, or cannot read its own. Collective."""
        batch, error = None, None
        try:
            batch = fetch()
        except Exception as failure:
            error = failure
        flags = [self.stop_requested(), self.saver.failed, error is not None]
        agreed = self._heeded(self.ranks.agree_each(flags), "evaluating", error)
        if agreed.stop and batch is not None:
            raise Interrupted
        return batch
