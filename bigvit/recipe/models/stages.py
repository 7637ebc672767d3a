"""What models have in common whose blocks stand in stages. No torch here."""

from abc import abstractmethod
from collections.abc import Iterator

from bigvit.recipe.bounds import MOST_STAGES, allow
from bigvit.recipe.depth import ImageSize
from bigvit.recipe.models.description import Description, Grid


class Staged(Description):
    """Stages of blocks, each with a width and a grid of its own."""

    depths: tuple[int, ...]
    num_classes: int

    @property
    def depth(self) -> int:
        """Blocks in all."""
        return sum(self.depths)

    @property
    def branches(self) -> int:
        return 2 * self.depth

    @abstractmethod
    def stages(self, image_size: ImageSize) -> Iterator[tuple[int, int, int, Grid]]:
        """Blocks, heads, width and grid of each stage."""

    def maps(self, image_size: ImageSize) -> list[tuple[int, Grid]]:
        return [(d, grid) for n, _, d, grid in self.stages(image_size) for _ in range(n)]

    def check(self, image_size: ImageSize, starts_from: str | None) -> None:
        few = 1 <= len(self.depths) <= MOST_STAGES
        allow("model.depths", self.depths, few, f"1 to {MOST_STAGES} numbers")


class StagedAttention(Staged):
    """Stages of blocks with attention."""

    num_heads: tuple[int, ...]
    mlp_ratio: float

    @property
    @abstractmethod
    def widths(self) -> tuple[int, ...]:
        """Width of a token in each stage."""

    def check(self, image_size: ImageSize, starts_from: str | None) -> None:
        super().check(image_size, starts_from)
        heads, stages = self.num_heads, len(self.depths)
        each = f"one for each of {stages} stages"
        allow("model.num_heads", heads, len(heads) == stages, each)
        name = f"model.{self.width}"
        given: object = getattr(self, self.width)
        allow(name, given, len(self.widths) == stages, each)
        fits = all(d % n == 0 for d, n in zip(self.widths, heads, strict=True))
        allow(name, given, fits, f"in each stage a multiple of model.num_heads {heads}")
        narrow = int(min(self.widths) * self.mlp_ratio) >= 1
        allow("model.mlp_ratio", self.mlp_ratio, narrow, "1/width or more")
