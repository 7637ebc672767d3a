"""What of a model its objectives read. The rest is neither computed nor trained. No torch here."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from bigvit.recipe.detection import MaskRCNN
from bigvit.recipe.dino import Dino
from bigvit.recipe.grafit import Grafit
from bigvit.recipe.models import Model
from bigvit.recipe.models.cait import ClassAttention
from bigvit.recipe.models.pooling import AttentionPooling, ClassToken
from bigvit.recipe.models.resmlp import ClassMlp
from bigvit.recipe.objective import DRLoc, Objective
from bigvit.recipe.segmentation import UperNet


class Read(NamedTuple):
    """How far into a model objectives look."""

    pooled: bool  # at what heads classify
    tokens: bool  # at the last tokens, normalised
    blocks: float  # of the trunk, from the first on; inf: all of them
    unread: tuple[str, ...]  # what names of weights begin with that lie outside of those blocks

    @property
    def whole(self) -> bool:
        """Whether all of the trunk is read."""
        return self.blocks == inf

    def reads(self, name: str, layer: int) -> bool:
        """Whether a weight of the model is read.

        Args:
            layer: its depth: 0 the embedding, i the i-th block, then what lies behind.
        """
        return layer <= self.blocks and not name.startswith(self.unread)


def read_of(model: Model, objectives: Sequence[Objective]) -> Read:
    """What objectives read of a model; without any, as a teacher's, it predicts."""
    logits = not objectives
    pooled = tokens = False
    blocks = 0
    for each in objectives:
        match each:
            case UperNet():
                blocks = max(blocks, *(block + 1 for block in each.blocks))
            case MaskRCNN():  # the last of each stage
                blocks = model.depth
            case DRLoc():
                blocks = model.depth
                tokens |= each.blocks == "last" and each.normalised
            case Grafit() | Dino():
                pooled = True
            case _:
                logits = True
    pooled |= logits
    tokens |= pooled
    seen = inf if tokens or blocks >= model.depth else blocks
    unread = () if logits else ("head", "aux_head", "fc.")
    if not pooled and seen <= _joined(model):
        unread += ("cls_token", "dist_token", "blocks_token_only.")
    unread += () if tokens else ("norm.",)
    return Read(pooled, tokens, seen, unread)


def _joined(model: Model) -> float:
    """The first block that sees class tokens; inf where they pool what blocks have left."""
    match getattr(model, "pooling", None):
        case ClassToken(layer=layer):
            return layer
        case ClassAttention() | AttentionPooling() | ClassMlp():
            return inf
        case _:
            return 0
