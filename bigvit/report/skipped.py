"""Batches that a run never trains on, as `skipped.json` of its folder has them: what it rolled back
past, and what it was told to leave out. No torch here."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bigvit.checkpoint.skipped import read_skipped
from bigvit.recipe.words import read_json
from bigvit.report.blocks import Block, Table, Text
from bigvit.report.told import Told, listed
from bigvit.report.words import counted, moment, spoken

NAME = "skipped.json"
HEADS = ("batches", "when (UTC)", "loss", "mean before", "went back to", "why")


def skipped_batches(told: Told) -> Iterator[Block]:
    """What was skipped, why, and the names of its images; nothing where nothing was."""
    said = _read(told.path)
    if isinstance(said, str):
        yield Text(said, "warning")
        return
    if given := spans(said.get("given")):
        yield Text(f"It was told to leave out batches {given}.")
    if not (found := rollbacks(said)):
        return
    rows = [
        (
            spans(each.get("skipped")),
            moment(each.get("time")),
            _loss(each.get("loss")),
            _loss(each.get("loss_before")),
            f"batch {spoken(each.get('went_back_to', 0))}",
            str(each.get("reason", "")),
        )
        for each in found
    ]
    title = f"Rolled back {counted(len(rows), 'time')}: batches that it never trains on"
    yield Table(title, HEADS, rows)
    for each in found:
        names, count = listed(told.path / str(each.get("images", "")))
        if count:
            more = f", the first {len(names)}" if count > len(names) else ""
            caption = f"Images of batches {spans(each.get('skipped'))}: {count:,}{more}"
            yield Table(caption, ("", "image"), [*enumerated(names)], folded=True)


def enumerated(names: list[str]) -> Iterator[tuple[str, str]]:
    """Rows of a list."""
    for number, name in enumerate(names, 1):
        yield str(number), name


def rolled_back(told: Told) -> Iterator[tuple[float, str]]:
    """Epochs at which a run went back, and past what."""
    said = _read(told.path)
    for each in rollbacks(said) if isinstance(said, dict) else []:
        if type(each.get("batch")) is int:
            past = spans(each.get("skipped"))
            text = f"rolled back past batch{'' if past.isdecimal() else 'es'} {past}"
            yield told.epoch_at(each["batch"]), text


def ids(told: Told) -> list[int]:
    """Numbers in the data set of the images that were rolled back past."""
    said = _read(told.path)
    found = rollbacks(said) if isinstance(said, dict) else []
    batches = [batch for each in found for batch in each.get("ids") or []]
    return [number for batch in batches for number in batch if type(number) is int]


def rollbacks(said: dict[str, Any]) -> list[dict[str, Any]]:
    """The rollbacks that are told."""
    found = said.get("rollbacks")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def spans(value: Any) -> str:
    """[[40, 42], [57, 57]] as 40-42, 57."""
    rows = value if isinstance(value, list) else []
    pairs = [row for row in rows if isinstance(row, list) and len(row) == 2]
    return ", ".join(f"{a}-{b}" if a != b else str(a) for a, b in pairs)


def _loss(value: Any) -> str:
    return f"{value:.4g}" if type(value) in (int, float) else "not finite"


def _read(folder: Path) -> dict[str, Any] | str:
    """What the file says, or what is wrong with it."""
    file = folder / NAME
    if not file.exists():
        return {}
    try:
        read_skipped(folder)
        said = read_json(file)
    except (OSError, ValueError) as error:
        return f"{NAME} is damaged ({error})."
    return said if isinstance(said, dict) else f"{NAME} is damaged: it is no object."
