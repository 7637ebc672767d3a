"""Images that could not be read: known on every rank, and too many of them end the run."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bigvit.data.batch import Batch
from bigvit.data.sources import Source
from bigvit.ranks.joining import Ranks

LOST = 2  # the flag of a batch that a place has no image in


class TooManyBad(Exception):
    """More images are unreadable than the run allows; raised on every rank alike."""


class BadImages:
    """The distinct unreadable images that any rank has met."""

    def __init__(self, source: Source, share: float, ranks: Ranks) -> None:
        """
        Args:
            share: of the images, above which the run stops.
        """
        self.source, self.share, self.ranks = source, share, ranks
        self.ids: set[int] = set()
        self._new: list[int] = []

    def flag(self, micro: Sequence[Batch]) -> int:
        """What this rank's part of a global batch says: 2 where no image was found for a place, 1
        where one was bad that is not known yet, otherwise 0. The largest of the ranks' counts."""
        if not all(bool(batch.valid.all()) for batch in micro):
            return LOST
        return int(bool(self._news(micro)))

    def saw(self, micro: Sequence[Batch], flag: int) -> None:
        """Take note of what was bad for this rank's part of a global batch. Collective where there
        is something to note.

        Args:
            flag: the largest of the ranks' flags.

        Raises:
            TooManyBad: more than the share, or so many that no replacement was found.
        """
        if not flag:
            return
        news = torch.tensor(sorted(self._news(micro)), dtype=torch.int64)
        found = gather(news, self.ranks).tolist()
        self._new.extend(id for id in found if id not in self.ids)
        self.ids.update(found)
        if flag == LOST or len(self.ids) > self.share * len(self.source):
            names = ", ".join(self.source.name(id) for id in sorted(self.ids)[:3])
            raise TooManyBad(
                f"{len(self.ids):,} of {len(self.source):,} training images cannot be read, more "
                f"than the share of {self.share:g} that is allowed ({names}, ...); mend them, or "
                "allow more by --bad-images"
                if flag != LOST
                else f"training images cannot be read, and no others were found in their place "
                f"({len(self.ids):,} are known, {names}, ...); look at --data-root"
            )

    def _news(self, micro: Sequence[Batch]) -> set[int]:
        return {id for batch in micro for id in batch.bad.tolist()} - self.ids

    def new_names(self) -> list[str]:
        """Names of those that were met since this was last asked."""
        new, self._new = self._new, []
        return [self.source.name(id) for id in new]


def gather(ids: Tensor, ranks: Ranks) -> Tensor:
    """All ranks' distinct numbers, sorted. Collective.

    Args:
        ids: (any,) int64, as many as this rank has.
    """
    counts = torch.zeros(ranks.world, dtype=torch.int64)
    counts[ranks.rank] = len(ids)
    counts = ranks.sum(counts)
    whole = torch.zeros(int(counts.sum()), dtype=torch.int64)
    if len(whole) == 0:
        return whole
    start = int(counts[: ranks.rank].sum())
    whole[start : start + len(ids)] = ids
    return ranks.sum(whole).unique()
