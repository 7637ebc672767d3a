"""Architectures, one a file; `build` is the one place that knows them all."""

from bigvit.models.init import initial_weight
from bigvit.models.output import Output, TokenMap
from bigvit.models.parallel_vit import ParallelVisionTransformer
from bigvit.models.vit import ClassTokenTransformer, VisionTransformer
from bigvit.recipe import ImageSize, Model, ParallelViT, ViT

__all__ = [
    "ClassTokenTransformer",
    "Output",
    "ParallelVisionTransformer",
    "TokenMap",
    "VisionTransformer",
    "build",
    "initial_weight",
]


def build(model: Model, image_size: ImageSize) -> ClassTokenTransformer:
    """A model with memory but no meaningful weights: call its `init_weights`, or load some."""
    match model:
        case ViT():
            return VisionTransformer(model, image_size)
        case ParallelViT():
            return ParallelVisionTransformer(model, image_size)
