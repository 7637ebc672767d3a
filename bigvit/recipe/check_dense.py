"""Refuse dense tasks whose data, objectives and model do not go together. No torch here."""

from bigvit.recipe.depth import sides
from bigvit.recipe.detection import Detection, MaskRCNN
from bigvit.recipe.objective import DRLoc
from bigvit.recipe.recipe import Recipe
from bigvit.recipe.segmentation import Segmentation, UperNet

LEARNED_BY: dict[type, type] = {Segmentation: UperNet, Detection: MaskRCNN}


def check_dense(recipe: Recipe) -> None:
    """Check that data of scenes come with one objective that answers, and this with such data.

    Raises:
        ValueError: names the field, the value given and what is allowed.
    """
    data, size = recipe.data, recipe.data.image_size
    needed = LEARNED_BY.get(type(data))
    for i, each in enumerate(recipe.objectives):
        path, kind = f"objectives.{i}", type(each).__name__
        if isinstance(each, UperNet | MaskRCNN) and not isinstance(each, needed or ()):
            of = next(known.__name__ for known, by in LEARNED_BY.items() if isinstance(each, by))
            raise ValueError(
                f"{path}: {kind} is not allowed; it learns from {of} data, and these are "
                f"{type(data).__name__}"
            )
        if needed is not None and not isinstance(each, needed | DRLoc):
            raise ValueError(
                f"{path}: {kind} is not allowed; {type(data).__name__} data are learned by "
                f"{needed.__name__}, as their images have no class: leave it out"
            )
    if needed is not None:
        count = sum(isinstance(each, needed) for each in recipe.objectives)
        if count != 1:
            raise ValueError(
                f"objectives: {count} of {needed.__name__} are not allowed; {type(data).__name__} "
                "data are learned by one"
            )
    if isinstance(data, Detection) and data.turns:
        _check_turned(recipe, data)
    for i, each in enumerate(recipe.objectives):
        if isinstance(each, UperNet):
            each.check(f"objectives.{i}", recipe.model.maps(size), sides(size))
        if isinstance(each, MaskRCNN) and isinstance(data, Detection):
            each.check(f"objectives.{i}", recipe.model.maps(size), data)


def _check_turned(recipe: Recipe, data: Detection) -> None:
    """Refuse two canvases where something is made for one of them.

    Raises:
        ValueError: says what.
    """
    one = "" if recipe.model.turns else type(recipe.model).__name__
    if any(isinstance(each, DRLoc) for each in recipe.objectives):
        one = one or DRLoc.__name__
    if one:
        raise ValueError(
            f"data.image_size: {data.image_size} is not allowed, as {one} is made for one size, "
            "and a canvas that is not square is turned for images higher than wide; choose a "
            f"square, as {max(sides(data.image_size))}"
        )
