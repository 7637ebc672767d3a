"""What a rank does to show that boxes and masks are learned alike under every engine, from images
that lie and such that stand."""

import sys
from dataclasses import replace
from pathlib import Path

import tiny
from launched import Way, options, train

from bigvit.data.sources import Source, open_source
from bigvit.ranks.joining import Ranks
from bigvit.recipe import MaskRCNN, PaddedSwin, Steps, StochasticDepth
from bigvit.recipes.detection import scenes_mask_rcnn

sys.path[:0] = [str(Path(__file__).parents[1] / "data")]

import cocos  # noqa: E402

WAYS: tuple[Way, ...] = (2, 3, "fsdp2 full")
OTHERS: tuple[Way, ...] = (0, 1, "fairscale oss")
HALVES: tuple[Way, ...] = (3,)
CUT = {"micro_batch": 12}  # as `single` is not: it is all the same which images lie together
IMAGES, BARE = 288, 2  # of which the first two lists hold no object
head = scenes_mask_rcnn.objectives[0]
assert isinstance(head, MaskRCNN)
recipe = replace(
    tiny.adamw,
    model=replace(
        scenes_mask_rcnn.model,
        embed_dim=12,
        depths=(1, 2, 1, 1),  # of which one shifts its windows
        num_heads=(1, 1, 2, 2),
        drop_path=StochasticDepth(rate=0.3, group=4),
        num_classes=3,
    ),
    data=replace(
        cocos.DATA,
        train_images=IMAGES,
        test_images=None,
        image_size=(32, 64),
        shortest=(24, 32),
        longest=64,
        test_shortest=32,
    ),
    objectives=(
        replace(
            head,
            channels=12,
            anchors=(8, 16, 24, 32, 48),
            anchor_samples=32,
            candidates=(40, 40),
            proposals=(24, 24),
            samples=16,
            hidden_dim=20,
            mask_layers=1,
            sampling=0,
        ),
    ),
    schedule=Steps(epochs=1, warmup_updates=2, warmup_ratio=0.1, steps=(), factor=0.1),
    batch_size=48,
)
assert isinstance(recipe.model, PaddedSwin)


def source(folder: Path, ranks: Ranks | None = None) -> Source:
    """Its training images, written where they are not there yet."""
    root = folder / "coco"
    if (ranks is None or ranks.rank == 0) and not root.exists():
        cocos.write(root, "train", range(IMAGES + BARE))
        cocos.write(root, "val", range(1000, 1006))
    if ranks is not None:
        ranks.agree(0)
    return open_source(recipe.data, "train", root)


def detected(ranks: Ranks, folder: Path) -> None:
    """Runs with objects, and others that stop in mid-epoch."""
    source(folder, ranks)
    given = {"data_root": folder / "coco"}
    for way in WAYS:
        train(ranks, folder / f"detected {way}", recipe, **given, **CUT, **options(way))
    for way in HALVES:
        path, how = folder / f"detected halves {way}", options(way)
        train(ranks, path, recipe, **given, **CUT, **how, stop_after=tiny.STOP)


def detected_others(ranks: Ranks, folder: Path) -> None:
    """The other ways."""
    source(folder, ranks)
    for way in OTHERS:
        path, how = folder / f"detected {way}", options(way)
        train(ranks, path, recipe, data_root=folder / "coco", **CUT, **how)


def detected_halves(ranks: Ranks, folder: Path) -> None:
    """The stopped runs resumed, with a data process."""
    source(folder, ranks)
    for way in HALVES:
        path, how = folder / f"detected halves {way}", options(way)
        given = {"data_root": folder / "coco", "resume": "auto", "workers": 1}
        train(ranks, path, recipe, **given, **CUT, **how)


SCENARIOS = (detected, detected_others, detected_halves)
