"""What all architectures share: sizes of images, and stochastic depth. No torch here."""

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated

from bigvit.recipe.bounds import Bound, ShareBelow1, Side

__all__ = ["ImageSize", "LinearStochasticDepth", "StochasticDepth", "sides", "spread"]

Group = Annotated[int, Bound(1, 2**20)]
ImageSize = Side[int | tuple[int, int]]
"""Pixels: the side of a square image, or (height, width)."""


def sides(image_size: ImageSize) -> tuple[int, int]:
    """(height, width) of an image, pixels."""
    return image_size if isinstance(image_size, tuple) else (image_size, image_size)


def spread(total: int, places: int) -> list[int]:
    """A number in so many parts, which differ by one at most and are spread evenly."""
    return [(i + 1) * total // places - i * total // places for i in range(places)]


@dataclass(frozen=True)
class StochasticDepth:
    """Drop residual branches of random samples (arXiv:1603.09382), uniformly over depth.

    A rate above 0.1 keeps a fixed number of every `group` consecutive samples, drawn anew in each
    block and branch; a rate up to 0.1, or below 1/group, drops each sample independently.
    """

    rate: ShareBelow1[float]  # mean share of (sample, branch) pairs dropped, in [0, 1)
    group: Group  # consecutive samples of the global batch among which a fixed number is kept

    @property
    def grouped(self) -> bool:
        """Whether samples are kept by groups rather than one by one."""
        return self.rate > 0.1 and self.rate * self.group >= 1

    def rates(self, branches: int) -> list[float]:
        """The rate of each residual branch of the model in order."""
        return [self.rate] * branches

    def kept(self, branches: int) -> list[int]:
        """Samples kept of each group, for each residual branch of the model in order.

        The counts differ by one at most and are spread evenly, so that the mean rate over all
        branches is the recipe's to within 1 / (2 * group * branches).
        """
        return spread(round(branches * self.group * (1 - self.rate)), branches)

    def summary(self, branches: int) -> str:
        """The rates of all residual branches of a model, in a line."""
        if self.rate == 0:
            return f"stochastic depth 0: all samples kept in each of {branches} branches"
        if not self.grouped:
            return (
                f"stochastic depth {self.rate}: each sample dropped by itself in each of "
                f"{branches} branches (mean rate {self.rate:.4f})"
            )
        kept = self.kept(branches)
        mean = 1 - sum(kept) / (branches * self.group)
        less, more = min(kept), max(kept)
        where = f"in each of {branches} branches"
        if less < more:
            where = f"in {kept.count(less)} of {branches} branches, {more} in the others"
        return (
            f"stochastic depth {self.rate}: {less} of every {self.group} samples kept {where} "
            f"(mean rate {mean:.4f})"
        )


@dataclass(frozen=True)
class LinearStochasticDepth(StochasticDepth):
    """The same with a rate that grows linearly with depth, as DeiT has it: `rate` is that of the
    last block, and the first one drops nothing. A block has two branches of one rate."""

    def rates(self, branches: int) -> list[float]:
        blocks = branches // 2
        return [self.rate * (i // 2) / max(1, blocks - 1) for i in range(branches)]

    def kept(self, branches: int) -> list[int]:
        shares = accumulate(1 - rate for rate in self.rates(branches))
        ends = [round(self.group * share) for share in shares]
        return [end - start for start, end in pairwise([0, *ends])]

    def summary(self, branches: int) -> str:
        if self.rate == 0:
            return super().summary(branches)
        if not self.grouped:
            mean = sum(self.rates(branches)) / branches
            how = "each sample dropped by itself"
        else:
            kept = self.kept(branches)
            mean = 1 - sum(kept) / (branches * self.group)
            how = f"{max(kept)} to {min(kept)} of every {self.group} samples kept"
        return (
            f"stochastic depth 0 to {self.rate}, linear in depth: {how} in {branches} branches "
            f"(mean rate {mean:.4f})"
        )
