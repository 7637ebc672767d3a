"""Architectures, one a file; `build` is the one place that knows them all."""

from bigvit.models.cait import ClassAttentionTransformer
from bigvit.models.output import Output
from bigvit.models.parallel_vit import ParallelVisionTransformer
from bigvit.models.vit import ClassTokenTransformer, VisionTransformer
from bigvit.recipe import CaiT, ImageSize, Model, ParallelViT, ViT

__all__ = [
    "ClassAttentionTransformer",
    "ClassTokenTransformer",
    "Output",
    "ParallelVisionTransformer",
    "VisionTransformer",
    "build",
]


def build(model: Model, image_size: ImageSize) -> ClassTokenTransformer:
    """A model with memory but no meaningful weights: call its `init_weights`, or load some."""
    match model:
        case ViT():
            return VisionTransformer(model, image_size)
        case ParallelViT():
            return ParallelVisionTransformer(model, image_size)
        case CaiT():
            return ClassAttentionTransformer(model, image_size)
