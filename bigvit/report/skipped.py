"""Batches that a run never trains on, as `skipped.json` of its folder has them: what it rolled back
past, and what it was told to leave out. No torch here."""

from collections.abc import Iterator

from bigvit.checkpoint.skipped import Rollback, Spans, read_skipped
from bigvit.report.blocks import Block, Table, Text
from bigvit.report.told import Told, listed
from bigvit.report.words import counted, moment, spoken

HEADS = ("batches", "when (UTC)", "loss", "mean before", "went back to", "why")


def skipped_batches(told: Told) -> Iterator[Block]:
    """What was skipped, why, and the names of its images; nothing where nothing was."""
    try:
        said = read_skipped(told.path)
    except ValueError as error:
        yield Text(f"{error}.", "warning")
        return
    if said.given:
        yield Text(f"It was told to leave out batches {spans(said.given)}.")
    if not (found := said.rollbacks):
        return
    rows = [
        (
            spans(each.skipped),
            moment(each.time),
            _loss(each.loss),
            "–" if each.loss_before is None else _loss(each.loss_before),
            f"batch {spoken(each.went_back_to)}",
            each.reason,
        )
        for each in found
    ]
    title = f"Rolled back {counted(len(rows), 'time')}: batches that it never trains on"
    yield Table(title, HEADS, rows)
    for each in found:
        names, count = listed(told.path / each.images)
        if count:
            more = f", the first {len(names)}" if count > len(names) else ""
            caption = f"Images of batches {spans(each.skipped)}: {count:,}{more}"
            yield Table(caption, ("", "image"), [*enumerated(names)], folded=True)


def enumerated(names: list[str]) -> Iterator[tuple[str, str]]:
    """Rows of a list."""
    for number, name in enumerate(names, 1):
        yield str(number), name


def rolled_back(told: Told) -> Iterator[tuple[float, str]]:
    """Epochs at which a run went back, and past what."""
    for each in _rollbacks(told):
        past = spans(each.skipped)
        text = f"rolled back past batch{'' if past.isdecimal() else 'es'} {past}"
        yield told.epoch_at(each.batch), text


def ids(told: Told) -> list[int]:
    """Numbers in the data set of the images that were rolled back past."""
    return [id for each in _rollbacks(told) for batch in each.ids for id in batch]


def spans(rows: Spans) -> str:
    """Rows of batches, as 40-42, 57."""
    return ", ".join(f"{a}-{b}" if a != b else str(a) for a, b in rows)


def _loss(value: float | None) -> str:
    return f"{value:.4g}" if value is not None else "not finite"


def _rollbacks(told: Told) -> tuple[Rollback, ...]:
    """None where the file is damaged, as `skipped_batches` says."""
    try:
        return read_skipped(told.path).rollbacks
    except ValueError:
        return ()
