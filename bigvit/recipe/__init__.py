"""Recipes and runs as frozen dataclasses: every value that changes a result, and those that don't.

Nothing here imports torch, so that a command line is checked before anything heavy is loaded.
"""

from bigvit.recipe.data import (
    Data,
    Digits,
    Images,
    Mix,
    RandAugment,
    RandomResizedCrop,
    Shift,
    SimpleRandomCrop,
    ThreeAugment,
)
from bigvit.recipe.depth import ImageSize, StochasticDepth, sides
from bigvit.recipe.layout import Layout, batch_layout
from bigvit.recipe.models import Model
from bigvit.recipe.models.cait import (
    CAIT_SIZES,
    AveragePooling,
    CaiT,
    ClassAttention,
    ClassToken,
    Pooling,
    cait,
)
from bigvit.recipe.models.cvt import CvT
from bigvit.recipe.models.parallel_vit import ParallelViT
from bigvit.recipe.models.resnet import ResNet
from bigvit.recipe.models.swin import Swin
from bigvit.recipe.models.t2t_vit import T2TViT
from bigvit.recipe.models.vit import VIT_SIZES, ViT, vit
from bigvit.recipe.objective import BinaryCrossEntropy, CrossEntropy, DRLoc, Objective, Ramp
from bigvit.recipe.optim import AdamW, Cosine, Lamb, Optimizer, Schedule
from bigvit.recipe.recipe import Recipe
from bigvit.recipe.residual import (
    BranchScalar,
    FixedLayerScale,
    Fixup,
    LayerScale,
    Residual,
    TFixup,
    UniformLayerScale,
    Unscaled,
)
from bigvit.recipe.run import Command, Run

__all__ = [
    "CAIT_SIZES",
    "VIT_SIZES",
    "AdamW",
    "AveragePooling",
    "BinaryCrossEntropy",
    "BranchScalar",
    "CaiT",
    "ClassAttention",
    "ClassToken",
    "Command",
    "Cosine",
    "CrossEntropy",
    "CvT",
    "DRLoc",
    "Data",
    "Digits",
    "FixedLayerScale",
    "Fixup",
    "ImageSize",
    "Images",
    "Lamb",
    "LayerScale",
    "Layout",
    "Mix",
    "Model",
    "Objective",
    "Optimizer",
    "ParallelViT",
    "Pooling",
    "Ramp",
    "RandAugment",
    "RandomResizedCrop",
    "Recipe",
    "ResNet",
    "Residual",
    "Run",
    "Schedule",
    "Shift",
    "SimpleRandomCrop",
    "StochasticDepth",
    "Swin",
    "T2TViT",
    "TFixup",
    "ThreeAugment",
    "UniformLayerScale",
    "Unscaled",
    "ViT",
    "batch_layout",
    "cait",
    "sides",
    "vit",
]
