"""What a run does about a jump of its loss: it stops, or goes back to before it and leaves its
batches out (docs/rollback.md)."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch

from bigvit.checkpoint import metrics
from bigvit.checkpoint.files import write_bytes
from bigvit.checkpoint.load import fill, verified
from bigvit.checkpoint.manifest import Damaged, Manifest, batch_of
from bigvit.checkpoint.retention import discard_superseded
from bigvit.checkpoint.save import NotSaved, Saver
from bigvit.checkpoint.skipped import (
    IMAGES,
    NAME,
    Rollback,
    named,
    plain,
    read_skipped,
    spans_of,
    words,
    write_skipped,
)
from bigvit.checkpoint.sound import newest_sound
from bigvit.data.bad import gather
from bigvit.data.batch import Batch
from bigvit.data.sampler import Sampler
from bigvit.data.sources import Source
from bigvit.engines.engine import Engine, NotFinite
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Command
from bigvit.training.loss_guard import LossGuard, LossJumped
from bigvit.training.progress import Place, Progress
from bigvit.training.start import Refused

SHOWN = 4  # images that are named in what is said
LOSSES = 10  # losses before a jump that are written down

Restart = Callable[[], object]
"""Gives the engine its initial weights again, and fresh moments. Collective."""


class Met(Exception):
    """An update was refused: the loss jumped, or something is not finite. On every rank alike."""

    def __init__(self, error: NotFinite | LossJumped, place: Place, micro: Sequence[Batch]) -> None:
        super().__init__(str(error))
        self.error, self.place, self.micro = error, place, micro  # the place before the update

    @property
    def batch(self) -> int:
        """The number of the batch."""
        return self.place.batch + 1

    def stops(self, more: str) -> Exception:
        """What ends the run."""
        return type(self.error)(f"{self.place.counted} {self.batch}: {self.error}{more}")


class Back(NamedTuple):
    """Where a run went back to."""

    place: Place
    saved: bool  # whether that is a checkpoint of the run folder
    due: bool  # whether the evaluation there was left for later
    losses: tuple[float, ...]  # that the loss guard looks back at


class Rollbacks:
    """Answers a jump, with all ranks. What is never trained on stands in `batches`."""

    def __init__(
        self,
        command: Command,
        engine: Engine,
        saver: Saver,
        source: Source,
        progress: Progress,
        batches: Sequence[int],
        restart: Restart | None,
    ) -> None:
        """
        Args:
            batches: what the run never trains on, as all ranks know it.
            restart: None where the run did not begin from its initial weights.
        """
        self.recipe, self.options = command.recipe, command.run
        self.engine, self.saver, self.ranks = engine, saver, engine.ranks
        self.source, self.progress, self.restart = source, progress, restart
        self.run = saver.folder.parent
        self.batches = set(batches)

    def after(self, met: Met, guard: LossGuard | None) -> Back:
        """Go back to before a jump. Collective.

        Raises:
            NotFinite, LossJumped: the run stops, as it was told to, or as it cannot go back.
        """
        with suppress(NotSaved):
            self.saver.wait()  # what is on its way is the last good one
        if self.options.on_jump == "stop":
            self._stop(met)
        count = int(self._on_rank_0(lambda: str(len(read_skipped(self.run).rollbacks)), met))
        if count >= self.options.rollbacks:
            self._stop(met, f"; it rolled back {count} times already (--rollbacks)")
        jump = self._jump(met, guard)
        good, reasons = newest_sound(self.run, self.ranks, earlier_than=min(jump))
        if good is None and self.restart is None:
            self._stop(met, "; there is nothing to roll back to")
        found = self._verified(good, met)
        self._on_rank_0(lambda: self._record(met, jump, good, guard), met)
        # from here on a start skips them, too, and takes no checkpoint that was trained on them
        self.batches |= set(jump)
        stuck = discard_superseded(self.saver.folder) if self.ranks.rank == 0 else {}
        for why in stuck.values():
            self.progress.warn(why)
        back = self._reload(found)
        self.progress.rolled_back(back.place, back.due, self._told(met, count, jump, good, reasons))
        return back

    def _jump(self, met: Met, guard: LossGuard | None) -> list[int]:
        """The batches of a jump: where it was met, and those before in which the loss rose."""
        row = guard.rising() if guard is not None else 0
        before = (n for n in range(met.batch - 1, 0, -1) if n not in self.batches)
        return [*reversed(list(islice(before, row))), met.batch]

    def _verified(self, good: Path | None, met: Met) -> tuple[Path, Manifest] | None:
        if good is None:
            return None
        self.ranks.at(f"reading {good}")
        try:
            return verified([good], self.ranks)
        except Damaged as error:
            self._stop(met, f"; it cannot go back: {error}")

    def _reload(self, found: tuple[Path, Manifest] | None) -> Back:
        """Fill the engine as a resume does."""
        if found is None:
            assert self.restart is not None
            self.ranks.at("making the initial weights again")
            self.restart()
            return Back(Place(0, 0), False, False, ())
        path, manifest = found
        fill(self.engine, path, manifest)
        place = Place(manifest.batch, manifest.update)
        return Back(place, True, manifest.evaluation_due, manifest.losses)

    def _record(
        self, met: Met, jump: Sequence[int], good: Path | None, guard: LossGuard | None
    ) -> str:
        """Write down, to stay, what is skipped and why; the list of images first."""
        sampler = Sampler.of(self.recipe, self.source)
        ids = [sampler.batch(n - 1)[2].tolist() for n in jump]
        before = read_skipped(self.run)
        losses = list(guard.losses) if guard is not None else []
        calm = losses[: len(losses) - len(jump) + 1]
        (self.run / IMAGES).mkdir(exist_ok=True)
        listed = self._images(jump)
        classes = self.source.classes
        lines = "".join(
            f"{n}\t{id}\t{classes[int(self.source.targets[id])]}\t{self.source.name(id)}\n"
            for n, of in zip(jump, ids, strict=True)
            for id in of
        )
        write_bytes(self.run / listed, f"batch\timage\tclass\tname\n{lines}".encode())
        new = Rollback(
            skipped=spans_of(jump),
            batch=met.batch,
            update=met.place.update,
            reason=str(met.stops("")),
            loss=plain(getattr(met.error, "loss", float("nan"))),
            loss_before=sum(calm) / len(calm) if calm else None,
            losses=tuple(losses[-LOSSES:]),
            checkpoint=None if good is None else good.name,
            went_back_to=0 if good is None else batch_of(good),
            time=metrics.utc_now(),
            images=listed,
            ids=tuple(map(tuple, ids)),
            ranks=self.ranks.world,
        )
        write_skipped(self.run, before.with_rollback(new))
        return ""

    def _images(self, jump: Sequence[int]) -> str:
        return f"{IMAGES}/batches_{named(jump)}.txt"

    def _told(
        self, met: Met, count: int, jump: list[int], good: Path | None, reasons: Sequence[str]
    ) -> str:
        if self.ranks.rank != 0:
            return ""
        *_, last = read_skipped(self.run).rollbacks
        ids = [id for of in last.ids for id in of]
        names = ", ".join(self.source.name(id) for id in ids[:SHOWN])
        dots = ", ..." if len(ids) > SHOWN else ""
        loss = f" from {last.loss_before:.4g}" if last.loss_before is not None else ""
        row = f", which rose{loss} over {words(jump)}" if len(jump) > 1 else ""
        passed = f" (newer ones are not good: {'; '.join(reasons)})" if reasons else ""
        where = "the initial weights" if good is None else f"{good}{passed}"
        return (
            f"rolled back, {count + 1} of at most {self.options.rollbacks} times (--rollbacks): "
            f"{last.reason}{row}. From now on {words(jump)} {'is' if len(jump) == 1 else 'are'} "
            f"skipped, after a resume, too ({self.run / NAME}); the {len(ids)} images are listed "
            f"in {self.run / last.images} ({names}{dots}). Training goes on from {where}"
        )

    def _on_rank_0(self, do: Callable[[], str], met: Met) -> str:
        """What rank 0 reads or writes; where it cannot, the run stops. Collective."""
        text, fault = "", ""
        if self.ranks.rank == 0:
            try:
                text = do()
            except (OSError, ValueError) as error:
                fault = str(error) or repr(error)
        if fault := self.ranks.first_text(fault):
            self._stop(met, f"; it cannot roll back ({fault})")
        return self.ranks.handed(text)

    def _stop(self, met: Met, why: str = "") -> NoReturn:
        """Say which batch a jump is about, its images, and where to go on from. Collective."""
        ids = gather(torch.cat([part.ids for part in met.micro]), self.ranks).tolist()
        good, reasons = newest_sound(self.run, self.ranks)
        images = [self.source.name(id) for id in ids]
        raise met.stops(why + self.progress.stopped(images, good, reasons))


def taken_up(
    run: Path, wanted: Sequence[int], manifest: Manifest | None, ranks: Ranks
) -> tuple[int, ...]:
    """What a run never trains on: what its folder says, what the checkpoint that it goes on from
    was told, and what `--skip-batches` names. Rank 0 writes it down. Collective.

    Raises:
        Refused: on every rank; it cannot be read or written.
    """
    text = ""
    with ranks.agree_on_error(OSError, ValueError, raised=Refused):
        if ranks.rank == 0:
            before = read_skipped(run)
            told = manifest.skipped_batches if manifest is not None else ()
            now = before.with_given([*told, *wanted])
            if now != before:
                write_skipped(run, now)
            text = json.dumps(now.batches)
    return tuple(json.loads(ranks.handed(text)))
