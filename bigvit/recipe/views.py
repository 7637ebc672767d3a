"""Views of an image in groups: what they are, and what objectives may ask. No torch here."""

from bigvit.recipe.all_data import Data
from bigvit.recipe.bounds import allow
from bigvit.recipe.dino import Dino
from bigvit.recipe.grafit import Grafit
from bigvit.recipe.models.pooling import AttentionPooling
from bigvit.recipe.recipe import Recipe


def views_of(data: Data, group: int) -> int:
    """Views of an image in a group."""
    return data.groups[group - 1].count if group else 1


def check_views(recipe: Recipe) -> None:
    """Check what objectives ask of views, and of the network that follows.

    Raises:
        ValueError: names the field, the value given and what is allowed.
    """
    for i, objective in enumerate(recipe.objectives):
        path = f"objectives.{i}"
        if isinstance(objective, Grafit | Dino):
            recipe.model.maps(recipe.data.image_size)
            _check_features(path, recipe)
        match objective:
            case Grafit():
                _check_grafit(path, objective, recipe)
            case Dino():
                _check_dino(path, objective, recipe)
            case _:
                pass


def _check_grafit(path: str, grafit: Grafit, recipe: Recipe) -> None:
    if not grafit.knn and not grafit.instance:
        raise ValueError(
            f"{path}: the factors of the kNN and of the instance loss are both 0; choose at least "
            f"one above 0: --{path}.knn 1, or leave the objective out"
        )
    if grafit.instance:
        _check_group(f"{path}.views", grafit.views, recipe)
        if views_of(recipe.data, grafit.views) < 2:
            raise ValueError(
                f"{path}.views: group {grafit.views} has one view of an image; the instance loss "
                "compares two or more"
            )
        _check_follower(path, "the instance loss", recipe)
    elif grafit.predictor is not None:
        raise ValueError(
            f"{path}.predictor: nothing trains it without the instance loss; leave it out (None), "
            f"or --{path}.instance 1"
        )
    if grafit.knn and recipe.data.mixing_group is not None:
        raise ValueError(
            f"{path}.knn: {grafit.knn} is not allowed with data.mix, as a mixed image has no "
            f"neighbours of its class; choose another data.mix (None), or --{path}.knn 0"
        )


def _check_dino(path: str, dino: Dino, recipe: Recipe) -> None:
    if not dino.large:
        raise ValueError(f"{path}.large: none given; the network that follows sees at least one")
    given = (*dino.large, *dino.small)
    for name, groups in (("large", dino.large), ("small", dino.small)):
        for group in groups:
            if given.count(group) > 1:
                raise ValueError(f"{path}.{name}: {groups} is not allowed; name each group once")
            if group:
                _check_group(f"{path}.{name}", group, recipe)
    if sum(views_of(recipe.data, group) for group in given) < 2:
        raise ValueError(f"{path}.large: one crop is not allowed; the loss compares two or more")
    if 0 in given and recipe.data.mixing_group is not None:
        raise ValueError(
            "data.mix: not allowed where images are crops of DINO (group 0), as a mixed image is "
            "of two; choose None"
        )
    epochs = recipe.epochs
    for name in ("warmup_epochs", "held_epochs"):
        value: int = getattr(dino, name)
        allow(f"{path}.{name}", value, value <= epochs, f"0 to schedule.epochs ({epochs})")
    _check_follower(path, "DINO", recipe)


def _check_group(path: str, group: int, recipe: Recipe) -> None:
    count = len(recipe.data.groups)
    there = f"1 to {count}, the groups of data.views" if count else "absent: data.views has none"
    allow(path, group, 1 <= group <= count, there)


def _check_follower(path: str, who: str, recipe: Recipe) -> None:
    if recipe.ema is None:
        raise ValueError(
            f"{path}: {who} needs a network that follows, the weights' moving average, and ema is "
            "None; give its decay: --ema 0.99"
        )
    if recipe.model.described and any(
        op.kind == "batch norm" and not recipe.gathers(op.module)
        for op in recipe.model.ops(recipe.data.image_size)
        if not op.module.startswith("fc.")  # what follows is read before its head
    ):
        raise ValueError(
            f"{path}: {who} needs a network that follows, whose BatchNorm goes by each batch, and "
            "the model's stands still; let it gather: model.frozen_statistics False, trainable all"
        )


def _check_features(path: str, recipe: Recipe) -> None:
    pooling = getattr(recipe.model, "pooling", None)
    if isinstance(pooling, AttentionPooling) and pooling.queries == "classes":
        raise ValueError(
            f"{path}: {type(recipe.model).__name__} pools a vector a class, and not one of the "
            "image; choose another model.pooling"
        )
