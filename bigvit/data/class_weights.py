"""What each class counts in a loss, from how many training images it has; and which they are.

Shapes: K classes.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from bigvit.data.sources.source import Source
from bigvit.recipe import BinaryCrossEntropy, CrossEntropy, Grafit, Recipe
from bigvit.recipe.objective import ClassWeights

Weights = Mapping[ClassWeights, NDArray[np.float32]]
"""Weights (K,) by what asks for them."""


def class_weights(asked: ClassWeights, counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """The weights (K,) of classes that have so many training images (K,).

    Those by frequency are scaled so that their mean over the training images is 1, and the loss
    stays as large as without: "inverse" is then scikit-learn's "balanced". Cui et al.
    (arXiv:1901.05555, equation 2) scale theirs to a sum of K, which is a factor.

    Raises:
        ValueError: a class has no images.
    """
    if isinstance(asked, tuple):
        return np.array(asked, np.float32)
    if not counts.all():
        none = int(np.flatnonzero(counts == 0)[0])
        raise ValueError(
            f"class_weights: {asked} is not allowed, as class {none} has no training images; give "
            "numbers, or None"
        )
    kind, _, value = asked.partition(" ")
    if kind == "effective":
        beta = float(value)
        weights = (1 - beta) / -np.expm1(counts * np.log(beta))
    else:
        weights = counts ** (-0.5 if value == "sqrt" else -1.0)
    return (weights * counts.sum() / (weights * counts).sum()).astype(np.float32)


def weights_for(recipe: Recipe, source: Source) -> Weights:
    """All that a recipe's objectives ask for, of its training images.

    Raises:
        ValueError: a class has no images; the message names the objective.
    """
    asked = asked_by(recipe)
    if not asked:
        return {}
    counts = np.bincount(source.targets, minlength=recipe.data.classes)
    try:
        return {each: class_weights(each, counts) for each in asked.values()}
    except ValueError as error:
        raise ValueError(f"{next(iter(asked))}.{error}") from None


def labels_for(recipe: Recipe, source: Source) -> NDArray[np.int64] | None:
    """The classes (N,) of all training images, where an objective compares with all of them."""
    return np.asarray(source.targets, np.int64).copy() if asks_for_labels(recipe) else None


def asks_for_labels(recipe: Recipe) -> bool:
    """Whether an objective compares with the classes of all training images."""
    return any(isinstance(each, Grafit) and each.knn for each in recipe.objectives)


def asked_by(recipe: Recipe) -> dict[str, ClassWeights]:
    """By an objective's path in the recipe, what weights it asks for, if any."""
    return {
        f"objectives.{i}": each.class_weights
        for i, each in enumerate(recipe.objectives)
        if isinstance(each, BinaryCrossEntropy | CrossEntropy) and each.class_weights is not None
    }
