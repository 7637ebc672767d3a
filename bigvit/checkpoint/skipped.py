"""Batches that a run never trains on, and why: `skipped.json` of its folder. No torch here.

Batches have the numbers that they have in metrics.jsonl and in what is said: the first one is 1,
and `step_00000040` was saved after batch 40. docs/rollback.md says what each field of the file is.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bigvit.checkpoint.files import write_json
from bigvit.checkpoint.manifest import Damaged, batch_of, read_manifest
from bigvit.recipe.bounds import MOST_UPDATES, shown
from bigvit.recipe.store import build
from bigvit.recipe.words import read_json

NAME = "skipped.json"
IMAGES = "rollbacks"  # folder of the lists of images, in a run folder
MOST = 1_000_000  # batches that `--skip-batches` names

Spans = tuple[tuple[int, int], ...]
"""First and last batch of each row of them."""


@dataclass(frozen=True)
class Rollback:
    """A run went back past a jump of its loss."""

    skipped: Spans  # the batches of the jump
    batch: int  # where it was met
    update: int  # updates applied by then
    reason: str  # as the run says it where it stops
    loss: float | None  # of that batch; None: not finite
    loss_before: float | None  # mean of up to 50 losses before the jump; None: nobody looked
    losses: tuple[float, ...]  # the last of them before that batch, up to ten, the jump's included
    checkpoint: str | None  # that it went back to, by its name; None: to the initial weights
    went_back_to: int  # the batches consumed there
    time: str  # UTC, ISO 8601
    images: str  # list of the images in these batches, from the run folder
    ids: tuple[tuple[int, ...], ...]  # their numbers in the data set, of one batch after the other
    ranks: int


@dataclass(frozen=True)
class Skipped:
    """What skipped.json says."""

    given: Spans = ()  # by --skip-batches
    rollbacks: tuple[Rollback, ...] = field(default=())

    @property
    def batches(self) -> tuple[int, ...]:
        """All of them, in their order."""
        spans = [*self.given, *(span for each in self.rollbacks for span in each.skipped)]
        return tuple(sorted({n for first, last in spans for n in range(first, last + 1)}))

    def with_given(self, batches: Iterable[int]) -> "Skipped":
        """The same with more batches that nobody rolled back past."""
        new = set(batches) - set(self.batches)
        own = {n for first, last in self.given for n in range(first, last + 1)}
        return replace(self, given=spans_of(own | new)) if new else self

    def with_rollback(self, rollback: Rollback) -> "Skipped":
        """The same with one more."""
        return replace(self, rollbacks=(*self.rollbacks, rollback))


def read_skipped(run: Path) -> Skipped:
    """What a run folder's file says; nothing is skipped where there is none.

    Raises:
        ValueError: it is damaged.
    """
    file = run / NAME
    try:
        found = build(Skipped, read_json(file), NAME)
        spans = [*found.given, *(span for each in found.rollbacks for span in each.skipped)]
        for first, last in spans:
            if not 1 <= first <= last <= MOST_UPDATES or last - first >= MOST:
                raise ValueError(f"[{first}, {last}] are no batches")
    except FileNotFoundError:
        return Skipped()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} is damaged ({error}); mend it, or go on from a checkpoint by its path in "
            "another --run-dir"
        ) from None
    return found


def write_skipped(run: Path, skipped: Skipped) -> None:
    """Write a run folder's file, whole and flushed to the disk."""
    write_json(run / NAME, asdict(skipped))


def superseded(checkpoint: Path, batches: Collection[int]) -> bool:
    """Whether a checkpoint was trained on batches that are skipped: the run went back past it."""
    end = batch_of(checkpoint)
    if not (within := {n for n in batches if n <= end}):
        return False
    try:
        return not within <= set(read_manifest(checkpoint).skipped_batches)
    except Damaged:
        return False  # whoever reads it says so


def parse_batches(text: str) -> tuple[int, ...]:
    """The batches that a text names, as "40-42,57".

    Raises:
        ValueError: it is of another form.
    """
    found = set[int]()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,12})(?:-([0-9]{1,12}))?\s*", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= MOST_UPDATES or last - first >= MOST:
            raise ValueError(
                f"--skip-batches {shown(text)}: give numbers of batches from 1 on, and rows of "
                "them, as 40-42,57"
            )
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def spans_of(batches: Iterable[int]) -> Spans:
    """Batches as rows of them."""
    spans: list[tuple[int, int]] = []
    for n in sorted(batches):
        if spans and n == spans[-1][1] + 1:
            spans[-1] = spans[-1][0], n
        else:
            spans.append((n, n))
    return tuple(spans)


def named(batches: Iterable[int]) -> str:
    """Batches as a person reads them, and `parse_batches` too."""
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in spans_of(batches))


def said(skipped: Skipped) -> str:
    """What a run did in a few words; nothing where it skipped nothing."""
    count, batches = len(skipped.rollbacks), skipped.batches
    if not batches:
        return ""
    back = f"rolled back {count} time{'s' * (count > 1)}, " if count else ""
    return f"{back}never trained on {words(batches)}"


def words(batches: Sequence[int]) -> str:
    """Batches in a sentence."""
    return f"batch{'es' * (len(batches) > 1)} {named(batches)}"


def plain(value: Any) -> float | None:
    """A loss as JSON has it: none where it is not finite."""
    number = float(value)
    return number if number - number == 0 else None
