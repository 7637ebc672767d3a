"""Losses of a model's output and the targets, some with a head of their own; here they are all
known by their recipes.

Shapes: B images, K classes.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from bigvit.models.output import Output, TokenMap
from bigvit.objectives import drloc
from bigvit.objectives.classification import binary_cross_entropy, cross_entropy, dense
from bigvit.objectives.drloc import DenseRelativeLocalization
from bigvit.recipe import BinaryCrossEntropy, CrossEntropy, DRLoc, ImageSize, Model, Objective

__all__ = [
    "DenseRelativeLocalization",
    "dense",
    "draws",
    "every_block",
    "factor",
    "head",
    "loss",
    "name",
    "seen",
]


def head(
    objective: Objective, model: Model, image_size: ImageSize
) -> DenseRelativeLocalization | None:
    """What an objective trains beside the model, without meaningful weights; None for nothing."""
    if isinstance(objective, DRLoc):
        return DenseRelativeLocalization(objective, _maps(objective, model, image_size))
    return None


def draws(
    objective: Objective,
    name: str,
    model: Model,
    image_size: ImageSize,
    seed: int,
    number: int,
    span: tuple[int, int],
) -> dict[str, Tensor]:
    """Everything random of an objective about positions [start, stop) of a global batch."""
    if not isinstance(objective, DRLoc):
        return {}
    grids = [grid for _, grid in _maps(objective, model, image_size)]
    pairs = drloc.draw(objective, grids, name, seed, number, span)
    return {f"{name}_pairs_{i}": each for i, each in enumerate(pairs)}


def loss(
    objective: Objective,
    output: Output,
    targets: Tensor,
    head: nn.Module | None = None,
    pairs: Sequence[Tensor] = (),
) -> Tensor:
    """The weighted loss of one objective, a float32 scalar.

    Args:
        targets: (B,) classes or (B, K).
        head: the objective's own, and what was drawn for it, where it has one.
    """
    match objective:
        case BinaryCrossEntropy():
            value = binary_cross_entropy(output.logits, targets, objective.threshold)
        case CrossEntropy():
            value = cross_entropy(output.logits, targets, objective.smoothing)
        case DRLoc():
            assert head is not None
            value = head(seen(objective, output), pairs)
    return objective.weight * value


def name(objective: Objective) -> str:
    """What an objective is called in the log."""
    match objective:
        case BinaryCrossEntropy():
            return "binary_cross_entropy"
        case CrossEntropy():
            return "cross_entropy"
        case DRLoc():
            return "drloc"


def factor(objective: Objective, epoch: float, epochs: int) -> float:
    """What an objective's weight is multiplied with after so many epochs, begun ones too."""
    if isinstance(objective, DRLoc) and objective.ramp:
        return objective.ramp.factor(epoch, epochs)
    return 1.0


def every_block(objective: Objective) -> bool:
    """Whether an objective asks the model for each block's tokens."""
    return isinstance(objective, DRLoc) and (objective.blocks == "all" or not objective.normalised)


def seen(objective: DRLoc, output: Output) -> Sequence[TokenMap]:
    """The tokens that dense relative localization looks at."""
    if objective.blocks == "all":
        return output.blocks
    return [TokenMap(output.tokens, output.grid) if objective.normalised else output.blocks[-1]]


def _maps(
    objective: DRLoc, model: Model, image_size: ImageSize
) -> list[tuple[int, tuple[int, int]]]:
    maps = model.maps(image_size)
    return maps if objective.blocks == "all" else maps[-1:]
