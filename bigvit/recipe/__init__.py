"""Recipes and runs as frozen dataclasses: every value that changes a result, and those that don't.

Nothing here imports torch, so that a command line is checked before anything heavy is loaded.
"""

from bigvit.recipe.backbones import CvT, ResNet, Swin, T2TViT
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
from bigvit.recipe.layout import Layout, layout
from bigvit.recipe.model import VIT_SIZES, Model, ParallelViT, ViT, vit
from bigvit.recipe.objective import BinaryCrossEntropy, CrossEntropy, DRLoc, Objective, Ramp
from bigvit.recipe.optim import AdamW, Cosine, Lamb, Optimizer, Schedule
from bigvit.recipe.recipe import Recipe
from bigvit.recipe.run import Command, Run

__all__ = [
    "VIT_SIZES",
    "AdamW",
    "BinaryCrossEntropy",
    "Command",
    "Cosine",
    "CrossEntropy",
    "CvT",
    "DRLoc",
    "Data",
    "Digits",
    "ImageSize",
    "Images",
    "Lamb",
    "Layout",
    "Mix",
    "Model",
    "Objective",
    "Optimizer",
    "ParallelViT",
    "Ramp",
    "RandAugment",
    "RandomResizedCrop",
    "Recipe",
    "ResNet",
    "Run",
    "Schedule",
    "Shift",
    "SimpleRandomCrop",
    "StochasticDepth",
    "Swin",
    "T2TViT",
    "ThreeAugment",
    "ViT",
    "layout",
    "sides",
    "vit",
]
