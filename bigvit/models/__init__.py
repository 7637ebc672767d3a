"""Architectures, one a file; `build` is the one place that knows them all."""

from typing import Any, overload

from bigvit.models.backbone import Backbone
from bigvit.models.cait import ClassAttentionTransformer
from bigvit.models.cvt import ConvolutionalVisionTransformer
from bigvit.models.deit import DistilledTransformer
from bigvit.models.init import initial_weight
from bigvit.models.lv_vit import LabeledVisionTransformer
from bigvit.models.output import Output, TokenMap
from bigvit.models.parallel_vit import ParallelVisionTransformer
from bigvit.models.patchconvnet import PatchConvolutionalNetwork
from bigvit.models.resmlp import ResidualMlp
from bigvit.models.resnet import ResidualNetwork
from bigvit.models.swin import SwinTransformer
from bigvit.models.t2t_vit import T2TVisionTransformer
from bigvit.models.timm import TimmModel
from bigvit.models.vit import ClassTokenTransformer, VisionTransformer
from bigvit.recipe import (
    CaiT,
    CvT,
    DeiT,
    ImageSize,
    LVViT,
    Model,
    ParallelViT,
    PatchConvNet,
    ResMLP,
    ResNet,
    Swin,
    T2TViT,
    Timm,
    ViT,
)

__all__ = [
    "Backbone",
    "ClassAttentionTransformer",
    "ClassTokenTransformer",
    "ConvolutionalVisionTransformer",
    "DistilledTransformer",
    "LabeledVisionTransformer",
    "Output",
    "ParallelVisionTransformer",
    "PatchConvolutionalNetwork",
    "ResidualMlp",
    "ResidualNetwork",
    "SwinTransformer",
    "T2TVisionTransformer",
    "TimmModel",
    "TokenMap",
    "VisionTransformer",
    "build",
    "initial_weight",
]


@overload
def build(model: ViT | ParallelViT | DeiT, image_size: ImageSize) -> ClassTokenTransformer: ...
@overload
def build(model: Model, image_size: ImageSize) -> Any: ...  # a Backbone; its parts are its kind's
def build(model: Model, image_size: ImageSize) -> Backbone:
    """A model with memory but no meaningful weights: call its `init_weights`, or load some."""
    match model:
        case ViT():
            return VisionTransformer(model, image_size)
        case ParallelViT():
            return ParallelVisionTransformer(model, image_size)
        case DeiT():
            return DistilledTransformer(model, image_size)
        case CaiT():
            return ClassAttentionTransformer(model, image_size)
        case LVViT():
            return LabeledVisionTransformer(model, image_size)
        case ResMLP():
            return ResidualMlp(model, image_size)
        case Swin():
            return SwinTransformer(model, image_size)
        case T2TViT():
            return T2TVisionTransformer(model, image_size)
        case CvT():
            return ConvolutionalVisionTransformer(model, image_size)
        case ResNet():
            return ResidualNetwork(model, image_size)
        case PatchConvNet():
            return PatchConvolutionalNetwork(model, image_size)
        case Timm():
            return TimmModel(model, image_size)
