"""Recipes and runs as frozen dataclasses: every value that changes a result, and those that don't.

Nothing here imports torch, so that a command line is checked before anything heavy is loaded.
"""

from bigvit.recipe.all_data import *
from bigvit.recipe.data import *
from bigvit.recipe.depth import *
from bigvit.recipe.detection import *
from bigvit.recipe.dino import *
from bigvit.recipe.grafit import *
from bigvit.recipe.layout import *
from bigvit.recipe.models import *
from bigvit.recipe.models.cait import *
from bigvit.recipe.models.cvt import *
from bigvit.recipe.models.deit import *
from bigvit.recipe.models.distillation import *
from bigvit.recipe.models.lv_vit import *
from bigvit.recipe.models.parallel_vit import *
from bigvit.recipe.models.patchconvnet import *
from bigvit.recipe.models.pooling import *
from bigvit.recipe.models.resmlp import *
from bigvit.recipe.models.resnet import *
from bigvit.recipe.models.swin import *
from bigvit.recipe.models.t2t_vit import *
from bigvit.recipe.models.timm import *
from bigvit.recipe.models.vit import *
from bigvit.recipe.muon import *
from bigvit.recipe.objective import *
from bigvit.recipe.optim import *
from bigvit.recipe.recipe import *
from bigvit.recipe.residual import *
from bigvit.recipe.run import *
from bigvit.recipe.scene import *
from bigvit.recipe.segmentation import *
from bigvit.recipe.teacher import *
