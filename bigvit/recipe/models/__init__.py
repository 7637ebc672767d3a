"""What an architecture is, as plain values: one a file, each with its check, its size and its name
at timm. No torch here."""

from bigvit.recipe.models.cait import CaiT
from bigvit.recipe.models.cvt import CvT
from bigvit.recipe.models.deit import DeiT
from bigvit.recipe.models.lv_vit import LVViT
from bigvit.recipe.models.parallel_vit import ParallelViT
from bigvit.recipe.models.patchconvnet import PatchConvNet
from bigvit.recipe.models.resmlp import ResMLP
from bigvit.recipe.models.resnet import ResNet
from bigvit.recipe.models.swin import PaddedSwin, Swin
from bigvit.recipe.models.t2t_vit import T2TViT
from bigvit.recipe.models.timm import Timm
from bigvit.recipe.models.vit import ViT

__all__ = ["Model"]

Model = (
    ViT
    | ParallelViT
    | DeiT
    | CaiT
    | LVViT
    | ResMLP
    | Swin
    | PaddedSwin
    | T2TViT
    | CvT
    | ResNet
    | PatchConvNet
    | Timm
)
