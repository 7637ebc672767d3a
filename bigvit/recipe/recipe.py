"""A recipe: every value that changes a result, and nothing else. No field has a default."""

from dataclasses import dataclass
from typing import Annotated, Literal

from bigvit.recipe.all_data import Data
from bigvit.recipe.bounds import Batch, Bound, Share
from bigvit.recipe.detection import MaskRCNN
from bigvit.recipe.models import Model
from bigvit.recipe.objective import Objective, OfFeatures, ReLabel, TokenLabeling
from bigvit.recipe.optim import AdamW, Optimizer, Polynomial, Rates, Schedule, half_cosine
from bigvit.recipe.read import Read, read_of
from bigvit.recipe.segmentation import UperNet
from bigvit.recipe.teacher import Teacher

__all__ = ["Recipe"]

Trainable = Literal["all", "later_stages", "attention", "head"]
ClipNorm = Annotated[float | None, Bound(1e-38, 1e30)]
LayerDecay = Annotated[float, Bound(0.0, 1.0, above=True)]
Ema = Annotated[float | None, Bound(0.0, 1.0, above=True, below=True)]


@dataclass(frozen=True)
class Recipe:
    source: str  # where the values come from: paper and tables
    model: Model
    data: Data
    objectives: tuple[Objective, ...]  # their weighted losses are summed
    teacher: Teacher | None  # whose answers objectives may read; its weights: --teacher
    optim: Optimizer
    clip_norm: ClipNorm  # largest global gradient norm; None for no clipping
    schedule: Schedule
    # later_stages: all but the stem and the first stage; attention: with positions and head; head:
    # that alone, on a frozen trunk
    trainable: Trainable
    layer_decay: LayerDecay  # learning rate of a layer over that of the next one; 1 for none
    starts_from: str | None  # recipe of the weights to start from; None: from scratch
    resampling: Literal["antialiased", "plain"]  # how positions are brought to another grid
    batch_size: Batch[int]  # global: over all ranks and accumulation steps
    precision: Literal["fp32", "bf16", "fp16"]  # of forward, backward; weights, moments stay fp32
    gradient_precision: Literal["fp32", "bf16", "fp16"]  # of its sums over micro-batches and ranks
    ema: Ema  # decay of the weights' moving average an update; None: no average is kept
    # that it rises to by half a cosine (BYOL, arXiv:2006.07733, section 3.2); None: it stays
    ema_end: Share[float | None]
    seed: Annotated[int, Bound(0, 2**63 - 1)]  # of every random choice

    @property
    def updates_per_epoch(self) -> int:
        """Updates in an epoch: as many as there are whole batches of slots."""
        return self.data.train_images // self.batch_size

    @property
    def updates(self) -> int:
        """Updates of the whole training."""
        if isinstance(self.schedule, Polynomial):
            return self.schedule.updates
        return self.schedule.epochs * self.updates_per_epoch

    @property
    def epochs(self) -> int:
        """Epochs of the whole training, the last of which may be cut short."""
        if isinstance(self.schedule, Polynomial):
            return -(-self.schedule.updates // max(1, self.updates_per_epoch))
        return self.schedule.epochs

    def lr(self, update: int) -> float:
        """Learning rate of an update, 0 being the first."""
        return self.schedule.lr(self.optim.lr, update, self.updates_per_epoch)

    def rates(self, update: int) -> Rates:
        """All that an update (0 is the first) is told; None where it never changes."""
        gone, decay, ema = update / self.updates, None, None
        if isinstance(self.optim, AdamW) and self.optim.weight_decay_end is not None:
            first, last = self.optim.weight_decay, self.optim.weight_decay_end
            decay = half_cosine(first, last, gone)
        if self.ema is not None and self.ema_end is not None:
            ema = half_cosine(self.ema, self.ema_end, gone)
        held = max((getattr(each, "held_epochs", 0) for each in self.objectives), default=0)
        return Rates(self.lr(update), decay, ema, update < held * self.updates_per_epoch)

    @property
    def classifies(self) -> bool:
        """Whether an objective trains the model's own head; else that stays as it began."""
        return not all(isinstance(each, OfFeatures) for each in self.objectives)

    @property
    def dense(self) -> UperNet | MaskRCNN | None:
        """The objective whose head answers in the place of the model's own, if one does."""
        found = (each for each in self.objectives if isinstance(each, UperNet | MaskRCNN))
        return next(found, None)

    @property
    def summary(self) -> str:
        """The model in words, with the head that answers in the place of its own."""
        head = "" if self.dense is None else f" with {type(self.dense).__name__}"
        return f"{self.model.kind}{head}"

    @property
    def answers(self) -> bool:
        """Whether a head is trained that says something of an image."""
        return self.classifies or self.dense is not None

    @property
    def read(self) -> Read:
        """What of the model its objectives read."""
        return read_of(self.model, self.objectives)

    def trains(self, name: str, layer: int) -> bool:
        """Whether a parameter of the model is trained, or stays as it began.

        Args:
            layer: its depth, as `Read.reads` counts.
        """
        return trains(name, self.trainable, self.model.beginning) and self.read.reads(name, layer)

    def gathers(self, module: str) -> bool:
        """Whether a BatchNorm of the model gathers statistics in training, by its name. One whose
        weights are frozen does not: it normalises by what it has."""
        return self.trains(f"{module}.", 0) and self.model.gathers(module)

    @property
    def evaluated(self) -> bool:
        """Whether test images are counted while it trains: there are some, and a trained head."""
        return self.data.tested and self.answers

    @property
    def metrics(self) -> tuple[str, ...]:
        """What an evaluation measures that one checkpoint can be better by than another."""
        match self.dense:
            case UperNet():
                return ("miou",)
            case MaskRCNN():
                return "box_ap", "mask_ap"
            case None:
                return "top1", "top5", "test_loss"

    @property
    def maps(self) -> bool:
        """Whether objectives learn from label maps; they are given by `--label-maps`."""
        return any(
            isinstance(each, ReLabel) or isinstance(each, TokenLabeling) and each.labels == "map"
            for each in self.objectives
        )

    @property
    def groups(self) -> dict[str, int]:
        """Groups of consecutive samples that share a random draw, by what draws."""
        groups = {"model.drop_path.group": self.model.drop_path.group}
        if not self.model.drop_path.grouped:
            groups = {}
        if self.data.mixing_group is not None:
            groups["data.mix.group"] = self.data.mixing_group
        return groups


def trains(name: str, trainable: Trainable, beginning: tuple[str, ...]) -> bool:
    """Whether `trainable` lets a parameter of the model be trained, by its name."""
    if trainable == "head":
        return name.startswith(("head", "aux_head", "fc."))
    if trainable == "later_stages":
        return not name.startswith(beginning)
    attention = ".attn." in name or name.startswith(("head", "aux_head", "pos_embed"))
    return trainable == "all" or attention
