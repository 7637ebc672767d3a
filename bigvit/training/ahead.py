"""The next batch, and what the ranks agree on about it while the update before is computed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bigvit.data.batch import Batch
from bigvit.ranks.joining import Ranks


class RankFailed(Exception):
    """One rank alone met an error; raised on every rank alike, with what that one says."""


class Agreed(NamedTuple):
    """What the ranks agree on, the largest of each one's."""

    stop: int  # whether one knows a reason to stop
    unsaved: int  # whether the checkpoint under way cannot be written
    failed: int  # whether one could not read its images
    bad: int = 0  # as `BadImages.flag` says


@dataclass
class Ahead:
    """A rank's part of the next batch, which nothing has been done with."""

    micro: Sequence[Batch]  # nothing where there is none, or where it could not be read
    error: Exception | None
    agreed: Callable[[], list[int]]  # waits until the ranks have agreed


def raise_on_all(ranks: Ranks, doing: str, error: Exception | None) -> None:
    """One rank at least has met an error. Collective.

    Args:
        error: this rank's, if it has.

    Raises:
        RankFailed: always, from this rank's error.
    """
    said = ""
    if error is not None:
        who = f"{ranks.name(ranks.rank)}: " if ranks.hosts else ""
        said = f"{who}{doing} failed ({_line(error)})"
    raise RankFailed(ranks.first_text(said)) from error


def _line(error: Exception) -> str:
    """An error in a line: of a data worker's, which tells its whole traceback, the last."""
    text = str(error).strip()
    if "Original Traceback" in text:
        return text.splitlines()[-1]
    return f"{type(error).__name__}: {text}".splitlines()[0]
