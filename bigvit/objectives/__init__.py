"""Losses of a model's output and the targets, one module each; `build` is the one place that knows
them all."""

from functools import partial

from bigvit import recipe
from bigvit.objectives.classification import Classification, binary_cross_entropy, cross_entropy
from bigvit.objectives.detection import BoxesAndMasks
from bigvit.objectives.dino import SelfDistillation
from bigvit.objectives.distillation import Distilled, hard, soft
from bigvit.objectives.drloc import DenseRelativeLocalization
from bigvit.objectives.grafit import NeighboursAndInstances
from bigvit.objectives.objective import Objective
from bigvit.objectives.segmentation import PixelClasses
from bigvit.objectives.token_labeling import OfPatches
from bigvit.recipe import Recipe

__all__ = ["DenseRelativeLocalization", "Objective", "build"]


def build(objective: recipe.Objective, whole: Recipe) -> Objective:
    """An objective of a recipe, with memory for its weights but no meaningful ones."""
    model, data = whole.model, whole.data
    match objective:
        case recipe.BinaryCrossEntropy():
            loss = partial(binary_cross_entropy, threshold=objective.threshold)
            name, weights = "binary_cross_entropy", objective.class_weights
            return Classification(name, objective.weight, loss, class_weights=weights)
        case recipe.CrossEntropy():
            loss = partial(cross_entropy, smoothing=objective.smoothing)
            name, weights = "cross_entropy", objective.class_weights
            return Classification(name, objective.weight, loss, class_weights=weights)
        case recipe.HardDistillation():
            return Distilled("hard_distillation", objective.weight, objective.head, hard)
        case recipe.SoftDistillation():
            loss = partial(soft, tau=objective.tau, mean=objective.mean)
            return Distilled("soft_distillation", objective.weight, objective.head, loss)
        case recipe.TokenLabeling():
            return OfPatches(objective)
        case recipe.ReLabel():
            loss = partial(cross_entropy, smoothing=objective.smoothing)
            return Classification("relabel", objective.weight, loss, relabelled=True)
        case recipe.DRLoc():
            return DenseRelativeLocalization(objective, model.maps(data.image_size))
        case recipe.Grafit():
            dim = model.maps(data.image_size)[-1][0]
            return NeighboursAndInstances(objective, dim, data.train_images, whole.seed)
        case recipe.Dino():
            dim = model.maps(data.image_size)[-1][0]
            return SelfDistillation(objective, dim, whole.updates_per_epoch)
        case recipe.UperNet():
            return PixelClasses(objective, whole)
        case recipe.MaskRCNN():
            return BoxesAndMasks(objective, whole)
