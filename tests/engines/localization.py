"""What a rank does to show that heads and statistics are sharded, saved and resumed."""

from dataclasses import replace
from pathlib import Path

import tiny
from launched import train

from bigvit.engines.ranks import Ranks
from bigvit.recipe import CvT, DRLoc, Recipe, ResNet, StochasticDepth, Swin, T2TViT

STAGES = (2, 3)
GROUPS = StochasticDepth(rate=0.3, group=8)
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
        drop_path=StochasticDepth(rate=0.0, group=8),
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
    "swin": replace(short, model=Swin(1, 12, (1, 1), (1, 2), 4, 2.0, GROUPS, 1, 10)),
    "t2t": replace(short, model=T2TViT(8, 12, 2, 2, 2.0, GROUPS, 1, 10)),
    "resnet": replace(short, model=ResNet((1, 1), 1, 10)),
}


def localization(ranks: Ranks, folder: Path) -> None:
    """A ViT with dense relative localization, whole and in halves."""
    for stage in STAGES:
        train(ranks, folder / f"drloc_{stage}", vit, sharding=f"zero{stage}")
        path = folder / f"drloc_halves_{stage}"
        train(ranks, path, vit, sharding=f"zero{stage}", stop_after=tiny.STOP)
        train(ranks, path, vit, sharding=f"zero{stage}", resume="auto")


def statistics(ranks: Ranks, folder: Path) -> None:
    """A model with BatchNorm and an MLP for each block, whole and in halves; blocks recomputed."""
    for stage in STAGES:
        train(ranks, folder / f"cvt_{stage}", cvt, sharding=f"zero{stage}")
        path, options = folder / f"cvt_halves_{stage}", {"checkpoint_activations": 1.0}
        train(ranks, path, cvt, sharding=f"zero{stage}", stop_after=tiny.STOP, **options)
        train(ranks, path, cvt, sharding=f"zero{stage}", resume="auto", **options)


def statistics_bf16(ranks: Ranks, folder: Path) -> None:
    """BatchNorm in bf16."""
    train(ranks, folder / "cvt_bf16", cvt_bf16, sharding="zero3", stop_after=2)


def backbones(ranks: Ranks, folder: Path) -> None:
    """The other backbones at stage 3, blocks recomputed; ResNet, the slowest, for three updates."""
    for name, recipe in BACKBONES.items():
        stop = 3 if name == "resnet" else None
        options = {"sharding": "zero3", "checkpoint_activations": 1.0, "stop_after": stop}
        train(ranks, folder / name, recipe, **options)


SCENARIOS = (localization, statistics, statistics_bf16, backbones)
