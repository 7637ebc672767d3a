"""What further views, and a follower that is asked about them, add to a rank's update: the recipes
that their passes are planned as, and bytes. docs/plan.md has the formulas. No torch here."""

from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from bigvit.plan.activations import Macs, executed_macs
from bigvit.plan.weights import Weight, weights_of
from bigvit.recipe import Dino, Grafit, Recipe


class Group(NamedTuple):
    """A pass of the model on a group of views."""

    recipe: Recipe  # of the model alone, on images of that size
    views: int  # of an image


def seen(recipe: Recipe) -> list[Group]:
    """Passes of the model beside that on the images themselves."""
    each = (objective.seen for objective in _of_views(recipe))
    return [_group(recipe, number) for number in sorted({*chain(*each)})]


def trained_macs(recipe: Recipe) -> Macs:
    """Multiply-accumulates of an image with its further views; not the follower's."""
    each = [(views, executed_macs(of)) for of, views in (Group(recipe, 1), *seen(recipe))]
    return Macs(*(sum(n * of[i] for n, of in each) for i in range(len(Macs._fields))))


def asked(recipe: Recipe) -> list[Group]:
    """Passes of the follower, without gradient; none where there is no follower."""
    each = (objective.asked for objective in _of_views(recipe))
    return [_group(recipe, number) for number in sorted({*chain(*each)})]


def _of_views(recipe: Recipe) -> list[Grafit | Dino]:
    """Objectives that look at views."""
    return [each for each in recipe.objectives if isinstance(each, Grafit | Dino)]


def _group(recipe: Recipe, number: int) -> Group:
    every = recipe.data.groups
    size = recipe.data.image_size if number == 0 else every[number - 1].image_size
    of: dict[str, Any] = {"image_size": size, "views": type(recipe.data.views)()}
    data = replace(recipe.data, **of)
    return Group(
        replace(recipe, data=data, objectives=(), teacher=None, ema=None, ema_end=None),
        1 if number == 0 else every[number - 1].count,
    )


def follower_weights(recipe: Recipe) -> tuple[Weight, ...]:
    """A follower's weights, none where there is none: trained are those that follow such ones.
    They are no objects of `weights_of`."""
    if not asked(recipe):
        return ()
    return tuple(w._replace() for w in weights_of(recipe).all if w.followed)
