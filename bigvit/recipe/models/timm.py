"""Any architecture of timm's, by name and arguments; its sizes are literals. No torch here."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from bigvit.recipe import bounds
from bigvit.recipe.depth import ImageSize, StochasticDepth, sides
from bigvit.recipe.models.description import Description, Grid
from bigvit.recipe.models.ops import Op

__all__ = ["Timm", "TimmSizes"]

Count = Annotated[int, bounds.Bound(0, 10**18)]
OURS = {
    "num_classes": "model.num_classes",
    "in_chans": "model.in_chans",
    "img_size": "data.image_size",
    "drop_path_rate": "model.drop_path",
    "pretrained": "--init",
    "pretrained_cfg": "--init",
    "checkpoint_path": "--init",
}
"""Arguments of timm's that a recipe or an option says."""


@dataclass(frozen=True)
class TimmSizes:
    """What was counted of timm's model as the recipe names it: nothing can be said of it before it
    is built. A wrong number of branches is refused, with the right sizes."""

    parameters: Count  # that are trained
    macs: Count  # multiply-accumulates of linear layers, convolutions and attention, of one image
    branches: Count  # residual branches with stochastic depth, as they are called


@dataclass(frozen=True)
class Timm(Description):
    """A model that timm builds. Its stochastic depth, dropout, initial weights and BatchNorm are
    ours, its weights' names timm's."""

    architecture: str  # timm's name: timm.list_models() has them
    arguments: tuple[str, ...]  # what timm's entry point is given besides: "depth=2" each
    sizes: TimmSizes
    drop_path: StochasticDepth
    in_chans: bounds.Channels[int]  # channels of an image
    num_classes: bounds.Classes[int]  # classes of the head

    has_attention = False
    described = False
    width = "arguments"

    @property
    def summary(self) -> str:
        return " ".join([self.architecture, *self.arguments])

    @property
    def branches(self) -> int:
        return self.sizes.branches

    @property
    def depth(self) -> int:
        """Blocks, as far as anything says how many: each with one branch."""
        return self.sizes.branches

    @property
    def named(self) -> dict[str, Any]:
        """The arguments by name. A value is a Python literal; any other text is itself."""
        return {name: _value(text) for name, _, text in (a.partition("=") for a in self.arguments)}

    def parameters(self, image_size: ImageSize) -> int:
        return self.sizes.parameters

    def macs(self, image_size: ImageSize) -> int:
        return self.sizes.macs

    def maps(self, image_size: ImageSize) -> list[tuple[int, Grid]]:
        raise _unplanned(self.architecture)

    def grid(self, image_size: ImageSize) -> Grid:
        """None that is ours: positions are timm's, which knows how to resample them."""
        return (0, 0)

    def ops(self, image_size: ImageSize) -> Iterator[Op]:
        raise _unplanned(self.architecture)

    def check(self, image_size: ImageSize, starts_from: str | None) -> None:
        fits = re.fullmatch(r"[a-z0-9_]+", self.architecture) is not None
        bounds.allow("model.architecture", self.architecture, fits, "a name of timm's, no weights'")
        for argument in self.arguments:
            name = argument.partition("=")[0]
            fits = re.fullmatch(r"[a-z_0-9]+=.+", argument) is not None
            bounds.allow("model.arguments", argument, fits, "NAME=VALUE, as depth=2")
            where = OURS.get(name, "")
            bounds.allow("model.arguments", argument, not where, f"left out: {where} says it")
        twice = len(self.named) < len(self.arguments)
        bounds.allow("model.arguments", self.arguments, not twice, "of a name each")


def size_argument(image_size: ImageSize) -> int | tuple[int, int]:
    """An image's size as timm's models take it."""
    height, width = sides(image_size)
    return height if height == width else (height, width)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _unplanned(architecture: str) -> ValueError:
    return ValueError(
        f"model.architecture: {architecture} is timm's, and nothing describes what it computes "
        "layer by layer; bigvit plan, rehearse, dense relative localization and UperNet need it: "
        "give them a model of bigvit's own"
    )
