"""What a rank does to show that labels of patches are learned alike under every engine."""

import sys
from dataclasses import replace
from pathlib import Path

import tiny
from launched import Way, options, train

from bigvit.data.sources import Source, open_source
from bigvit.ranks.joining import Ranks
from bigvit.recipe import (
    DRLoc,
    LinearStochasticDepth,
    LVViT,
    MixToken,
    RandAugment,
    ReLabel,
    TokenLabeling,
)

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "data")]

import pictures  # noqa: E402
from mapped import write_maps  # noqa: E402

WAYS: tuple[Way, ...] = (3, "fsdp2 full")
OTHERS: tuple[Way, ...] = (0, 1, 2)
HALVES: tuple[Way, ...] = (3,)
model = LVViT(
    kernels=(3, 3, 8),
    strides=(1, 1, 8),
    filters=6,
    embed_dim=36,
    depth=2,
    num_heads=3,
    mlp_ratio=2.5,
    divisor=2.0,
    dense_head=True,
    drop_path=LinearStochasticDepth(rate=0.3, group=4),
    in_chans=3,
    num_classes=2,
)
recipe = replace(
    tiny.adamw,
    model=model,
    data=replace(
        pictures.DATA,
        train_images=576,
        test_images=0,
        image_size=(16, 32),
        augment=RandAugment(operations=2, magnitude=9.0, magnitude_std=0.5, increasing=True),
        mix=MixToken(alpha=1.0, cell=8, group=4),
    ),
    objectives=(
        ReLabel(weight=1.0, smoothing=0.1),
        TokenLabeling(weight=0.5, smoothing=0.1, labels="map"),
        DRLoc(0.1, None, "absolute", "grid", 0.0, "last", True, 8, None, "mean", 12, 2),
    ),
    schedule=replace(tiny.adamw.schedule, epochs=1, warmup_epochs=0),
    batch_size=96,
)


def source(folder: Path, ranks: Ranks | None = None) -> Source:
    """Its training images, and their maps beside them, written where they are not there yet."""
    root = folder / "photographs"
    if (ranks is None or ranks.rank == 0) and not root.exists():
        pictures.write_folders(root, "train", pictures.jpegs(recipe.data.train_images))
        write_maps(open_source(recipe.data, "train", root), folder / "maps", 64)
    if ranks is not None:
        ranks.agree(0)
    return open_source(recipe.data, "train", root)


def labelled(ranks: Ranks, folder: Path) -> None:
    """Runs with label maps, and others that stop in mid-epoch."""
    source(folder, ranks)
    given = {"data_root": folder / "photographs", "label_maps": folder / "maps"}
    for way in WAYS:
        train(ranks, folder / f"labelled {way}", recipe, **given, **options(way))
    for way in HALVES:
        path, how = folder / f"labelled halves {way}", options(way)
        train(ranks, path, recipe, **given, **how, stop_after=tiny.STOP)


def labelled_others(ranks: Ranks, folder: Path) -> None:
    """The other stages."""
    source(folder, ranks)
    given = {"data_root": folder / "photographs", "label_maps": folder / "maps"}
    for way in OTHERS:
        train(ranks, folder / f"labelled {way}", recipe, **given, **options(way))


def labelled_halves(ranks: Ranks, folder: Path) -> None:
    """The stopped runs resumed, with the same maps in another folder, and a data process."""
    source(folder, ranks)
    given = {"data_root": folder / "photographs", "label_maps": folder / "maps"}
    for way in HALVES:
        path, how = folder / f"labelled halves {way}", options(way)
        train(ranks, path, recipe, **given, **how, resume="auto", workers=1)


SCENARIOS = (labelled, labelled_others, labelled_halves)
