"""What a rank does to show that heads and statistics are sharded, saved and resumed."""

from dataclasses import replace
from pathlib import Path

import tiny
from launched import Way, options, train

from bigvit.ranks.joining import Ranks
from bigvit.recipe import AveragePooling, CvT, DRLoc, Recipe, ResNet, StochasticDepth, Swin, T2TViT

STAGES = (2, 3)
HALVES = {"drloc": 3, "cvt": 2}  # in the ordinary tests
MICRO_BATCH = 36  # two accumulation steps on two ranks
GROUPS = StochasticDepth(rate=0.3, group=4)
drloc = DRLoc(
    weight=0.5,
    ramp=None,
    offsets="absolute",
    unit="grid",
    alpha=0.001,
    blocks="last",
    normalised=True,
    pairs=12,
    grid=2,
    pooling="mean",
    hidden_dim=20,
    hidden_layers=2,
)
vit = replace(
    tiny.adamw,
    model=replace(tiny.adamw.model, drop_path=GROUPS),
    objectives=(*tiny.adamw.objectives, drloc),
    schedule=replace(tiny.adamw.schedule, epochs=1),
    ema=0.9,
)
cvt = replace(
    tiny.adamw,
    model=CvT(
        embed_dims=(12, 20),
        depths=(1, 1),
        num_heads=(1, 2),
        mlp_ratio=2.0,
        drop_path=StochasticDepth(rate=0.0, group=4),
        in_chans=1,
        num_classes=10,
    ),
    objectives=(*tiny.adamw.objectives, replace(drloc, blocks="all", offsets="classes", grid=None)),
    schedule=vit.schedule,
)

# one stage: a second one would have a single cell, and there torch 2.14's bf16 gradient of a
# depthwise convolution with stride 2 is, on a CPU, now and then whatever lay in memory
one_stage = replace(cvt.model, embed_dims=(12,), depths=(1,), num_heads=(1,))
cvt_bf16 = replace(cvt, model=one_stage, precision="bf16")

short = replace(vit, ema=None)
BACKBONES: dict[str, Recipe] = {
    "swin": replace(
        short, model=Swin(1, 12, (1, 1), (1, 2), 4, 2.0, AveragePooling(), GROUPS, 1, 10)
    ),
    "t2t": replace(short, model=T2TViT(8, 12, 2, 2, 2.0, GROUPS, 1, 10)),
    "resnet": replace(short, model=ResNet((1, 1), AveragePooling(), None, False, 1, 10)),
}

# BatchNorm by what it has, behind a stem and a first stage that are frozen
frozen = replace(
    short,
    model=ResNet((1, 1), AveragePooling(), None, True, 1, 10),
    schedule=replace(short.schedule, warmup_epochs=0),
    trainable="later_stages",
    starts_from="a test",
    batch_size=24,
)
FROZEN_WAYS: tuple[Way, ...] = (3, "fsdp2 full")
FROZEN_TOO: tuple[Way, ...] = (0, 1, 2, "fairscale oss", "fairscale sdp", "fsdp2 grads")
FROZEN_UPDATES, FROZEN_MICRO_BATCH = 4, 6


def localization(ranks: Ranks, folder: Path) -> None:
    """A ViT with dense relative localization, whole, and at one stage in halves."""
    for stage in STAGES:
        _train(ranks, folder / f"drloc_{stage}", vit, stage)
    _halves(ranks, folder, "drloc", HALVES["drloc"])


def statistics(ranks: Ranks, folder: Path) -> None:
    """A model with BatchNorm and an MLP for each block, whole, and at one stage in halves."""
    for stage in STAGES:
        _train(ranks, folder / f"cvt_{stage}", cvt, stage)
    _halves(ranks, folder, "cvt", HALVES["cvt"])


def other_halves(ranks: Ranks, folder: Path) -> None:
    """The same in halves, at the other stages."""
    for name, stage in HALVES.items():
        _halves(ranks, folder, name, sum(STAGES) - stage)


def _halves(ranks: Ranks, folder: Path, name: str, stage: int) -> None:
    """Stopped and resumed; CvT's blocks are recomputed."""
    path, recipe = folder / f"{name}_halves_{stage}", {"drloc": vit, "cvt": cvt}[name]
    for step in ({"stop_after": tiny.STOP}, {"resume": "auto"}):
        _train(ranks, path, recipe, stage, checkpoint_activations=float(name == "cvt"), **step)


def _train(ranks: Ranks, path: Path, recipe: Recipe, stage: int, **options: object) -> None:
    """A run; that of CvT to its end, where its statistics are used."""
    if recipe is cvt:
        options = {"stop_after": None, **options}
    train(ranks, path, recipe, sharding=f"zero{stage}", micro_batch=MICRO_BATCH, **options)


def statistics_bf16(ranks: Ranks, folder: Path) -> None:
    """BatchNorm in bf16."""
    _train(ranks, folder / "cvt_bf16", cvt_bf16, 3, stop_after=2)


def backbones(ranks: Ranks, folder: Path) -> None:
    """The other backbones at stage 3, blocks recomputed; ResNet, the slowest, for three updates."""
    for name, recipe in BACKBONES.items():
        stop = 3 if name == "resnet" else tiny.SHORT
        _train(ranks, folder / name, recipe, 3, checkpoint_activations=1.0, stop_after=stop)


def frozen_statistics(ranks: Ranks, folder: Path) -> None:
    """BatchNorm that stands still."""
    for way in FROZEN_WAYS:
        _frozen(ranks, folder, way)


def frozen_statistics_too(ranks: Ranks, folder: Path) -> None:
    """The other ways."""
    for way in FROZEN_TOO:
        _frozen(ranks, folder, way)


def _frozen(ranks: Ranks, folder: Path, way: Way) -> None:
    more = {"micro_batch": FROZEN_MICRO_BATCH, "stop_after": FROZEN_UPDATES, **options(way)}
    recomputed = float(way == 3)
    path = folder / f"frozen {way}"
    train(ranks, path, frozen, checkpoint_activations=recomputed, **more)


SCENARIOS = (
    *(localization, statistics, other_halves, statistics_bf16, backbones),
    *(frozen_statistics, frozen_statistics_too),
)
