"""How a global batch is cut: over ranks, then into micro-batches. No torch here."""

import math
from dataclasses import dataclass

from bigvit.recipe.recipe import Recipe

__all__ = ["Layout", "batch_layout", "micro_batches"]


@dataclass(frozen=True)
class Layout:
    """Rank r takes the r-th contiguous piece of the global batch, micro-batch m its m-th piece."""

    world: int  # ranks
    micro_batch: int  # images a rank computes at once
    accumulation: int  # micro-batches a rank in one update

    @property
    def batch_size(self) -> int:
        return self.world * self.micro_batch * self.accumulation

    def span(self, rank: int, micro: int) -> tuple[int, int]:
        """Positions [start, stop) of the global batch in a rank's micro-batch."""
        start = (rank * self.accumulation + micro) * self.micro_batch
        return start, start + self.micro_batch


def batch_layout(recipe: Recipe, world: int, micro_batch: int | None) -> Layout:
    """Cut the recipe's batch over `world` ranks, in micro-batches of this size (None: the largest).

    Raises:
        ValueError: the batch cannot be cut so; the message names sizes that work.
    """
    batch = recipe.batch_size
    group = math.lcm(*recipe.groups.values())
    if batch % world or batch // world % group:
        needs = "".join(f", in whole groups ({n} {size})" for n, size in recipe.groups.items())
        usable = [n for n in range(1, batch + 1) if batch % (n * group) == 0]
        ranks = f"it works on {_some(usable)} ranks, or " if usable else ""
        raise ValueError(
            f"batch_size {batch} does not divide over {world} ranks{needs}; "
            f"{ranks}choose a multiple of {world * group} for batch_size"
        )
    share, sizes = batch // world, micro_batches(recipe, world)
    micro = sizes[-1] if micro_batch is None else micro_batch
    if micro not in sizes:
        raise ValueError(
            f"--micro-batch {micro} does not work: batch_size {batch} over {world} ranks is "
            f"{share} images a rank, to be cut into equal micro-batches of whole groups; "
            f"choose one of {_some(sizes)}"
        )
    return Layout(world, micro, share // micro)


def micro_batches(recipe: Recipe, world: int) -> list[int]:
    """Sizes of a micro-batch that work on so many ranks, ascending."""
    share, group = recipe.batch_size // world, math.lcm(*recipe.groups.values())
    return [size for size in range(group, share + 1, group) if share % size == 0]


def _some(values: list[int]) -> str:
    """A list of numbers, shortened in the middle when it is long."""
    if len(values) > 12:
        return ", ".join(map(str, values[:6])) + ", ..., " + ", ".join(map(str, values[-3:]))
    return ", ".join(map(str, values))
