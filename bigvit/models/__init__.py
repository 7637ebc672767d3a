"""Architectures, one a file; `build` is the one place that knows them all."""

from bigvit.models.output import Output
from bigvit.models.vit import VisionTransformer
from bigvit.recipe import Model, ViT

__all__ = ["Output", "VisionTransformer", "build"]


def build(model: Model, image_size: int) -> VisionTransformer:
    """A model with memory but no meaningful weights: call its `init_weights`, or load some."""
    match model:
        case ViT():
            return VisionTransformer(model, image_size)
