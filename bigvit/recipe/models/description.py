"""What every model's description says, and what follows from that. No torch here."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from bigvit.recipe.depth import ImageSize
from bigvit.recipe.models.distillation import Fusion
from bigvit.recipe.models.ops import Op

Grid = tuple[int, int]


class Description(ABC):
    """A model's fields, and what follows from them without building it."""

    has_attention = True  # that can be trained while the rest is frozen
    described = True  # that `ops` says what is computed
    turns = False  # that it takes images of its size turned, too, with the same weights
    width = "embed_dim"  # the field that makes it larger
    beginning: tuple[str, ...] = ()  # how names of weights of stem and first stage begin

    @property
    @abstractmethod
    def summary(self) -> str:
        """Widths, depths and heads in a few characters."""

    @property
    def kind(self) -> str:
        """Its architecture and summary."""
        return f"{type(self).__name__} {self.summary}"

    @property
    @abstractmethod
    def branches(self) -> int:
        """Residual branches, each with a stochastic depth of its own."""

    @property
    def fusion(self) -> Fusion | None:
        """How the class and the distillation head predict together; None: there is one head."""
        return None

    @abstractmethod
    def maps(self, image_size: ImageSize) -> list[tuple[int, Grid]]:
        """Width and grid of each block's tokens; of CaiT's, each of the first stage."""

    @abstractmethod
    def ops(self, image_size: ImageSize) -> Iterator[Op]:
        """What is computed of an image of this size, in order."""

    @abstractmethod
    def check(self, image_size: ImageSize, starts_from: str | None) -> None:
        """Check what the fields mean for each other and for images of this size.

        Args:
            starts_from: the recipe of the weights that the training begins with.

        Raises:
            ValueError: names the field, the value given and what is allowed.
        """

    def grid(self, image_size: ImageSize) -> Grid:
        """Last tokens (down, across) of an image of this size."""
        return self.maps(image_size)[-1][1]

    def parameters(self, image_size: ImageSize) -> int:
        """Trained parameters at this image size."""
        return sum(op.times * op.parameters for op in self.ops(image_size))

    def macs(self, image_size: ImageSize) -> int:
        """Multiply-accumulates of one image's forward pass (what papers call GFLOPs)."""
        return sum(op.times * op.macs for op in self.ops(image_size))

    def gathers(self, module: str) -> bool:
        """Whether a BatchNorm that is trained gathers statistics, by its name."""
        return True

    def timm(self, image_size: ImageSize) -> dict[str, Any]:
        """What an export's config.json says of the model alone: timm's entry point, what that is
        called with, and under "pretrained_cfg" the names of the first and the last layer.

        Raises:
            ValueError: timm has no such model.
        """
        raise unknown(f"{type(self).__name__} like this")


def unknown(kind: str, way_out: str = "") -> ValueError:
    """What to raise where timm has no such model.

    Args:
        way_out: what to do instead.
    """
    return ValueError(
        f"timm's entry points build no {kind}: no export" + "; " * bool(way_out) + way_out
    )
