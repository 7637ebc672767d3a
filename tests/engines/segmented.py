"""What a rank does to show that UperNet is learned alike under every engine."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny
import torch
from launched import Way, options, train
from torch import nn

from bigvit.data.sources import Source, open_source
from bigvit.layers.conv_norm import SyncBatchNorm
from bigvit.ranks.joining import Ranks
from bigvit.recipe import SGD, AttentionPooling, Polynomial, Recipe, StochasticDepth, UperNet, ViT

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "data")]

import scenes  # noqa: E402

WAYS: tuple[Way, ...] = (3, "fsdp2 full")
OTHERS: tuple[Way, ...] = (0, 1, 2, "fsdp2 grads")
HALVES: tuple[Way, ...] = (3,)
HALVES_TOO: tuple[Way, ...] = (2, "fsdp2 full")
IMAGES = 384
head = UperNet(
    weight=1.0,
    blocks=(0, 0, 1, 1),
    normalised=True,
    channels=96,
    scales=(1, 2),
    auxiliary=0.4,
    auxiliary_channels=32,
    dropout=0.1,
    norm="group",
)
recipe: Recipe = replace(
    tiny.adamw,
    model=ViT(
        patch_size=4,
        embed_dim=32,
        depth=3,  # the last one and what pools are read by nothing: neither computed nor trained
        num_heads=2,
        mlp_ratio=2.5,
        layer_scale=0.1,
        pooling=AttentionPooling(heads=2, queries="one", mlp_ratio=2.0, layer_scale=0.1),
        dense_head=False,
        drop_path=StochasticDepth(rate=0.3, group=4),
        in_chans=3,
        num_classes=4,
    ),
    data=replace(scenes.DATA, train_images=IMAGES, test_images=0, image_size=(16, 24)),
    objectives=(head,),
    # Adam magnifies a rectifier that one order of summation opens and another does not: to 2.7e-5
    # in five orders, where SGD shows 3.9e-8
    optim=SGD(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.05),
    schedule=Polynomial(updates=8, warmup_updates=2, warmup_ratio=1e-6, power=1.0, min_lr=0.0),
    layer_decay=0.75,
    batch_size=48,
)
BATCH: tuple[Way, ...] = (0, 2, 3, "fsdp2 full")  # with statistics
MICRO_BATCH = 12  # two accumulation steps on two ranks
# without accumulation, statistics are those of the whole batch
whole_batch: Recipe = replace(
    recipe,
    objectives=(replace(head, norm="batch", normalised=False),),
    batch_size=24,
)


def source(folder: Path, ranks: Ranks | None = None) -> Source:
    """Its training images with their classes, written where they are not there yet."""
    root = folder / "scenes"
    if (ranks is None or ranks.rank == 0) and not root.exists():
        for kind in ("images", "annotations"):
            (root / kind / "training").mkdir(parents=True)
        for i in range(IMAGES):
            image, labels = scenes.scene(i, 24 + i % 5, 36 - i % 7)
            (root / "images" / "training" / f"{i:04d}.jpg").write_bytes(image)
            (root / "annotations" / "training" / f"{i:04d}.png").write_bytes(scenes.png(labels))
    if ranks is not None:
        ranks.agree(0)
    return open_source(recipe.data, "train", root)


def _train(ranks: Ranks, folder: Path, name: str, way: Way, of: Recipe, **more: Any) -> None:
    source(folder, ranks)
    given = {"data_root": folder / "scenes", "micro_batch": MICRO_BATCH, **options(way), **more}
    train(ranks, folder / f"segmented {name}{way}", of, **given)


def segmented(ranks: Ranks, folder: Path) -> None:
    """Runs, and others that stop in mid-epoch."""
    for way in WAYS:
        _train(ranks, folder, "", way, recipe)
    statistics(ranks, folder)
    for way in HALVES:
        _train(ranks, folder, "halves ", way, recipe, stop_after=tiny.STOP)


def statistics(ranks: Ranks, folder: Path) -> None:
    """A norm over all ranks' images beside torch's over the whole batch, in float64."""
    generator = torch.Generator().manual_seed(0)
    x, along = torch.randn(2, 6, 5, 4, 3, generator=generator, dtype=torch.float64).unbind()
    x = 3 * x + 2
    own, whole = SyncBatchNorm(5).double(), nn.BatchNorm2d(5).double()
    own.world = ranks.world
    for norm in (own, whole):
        nn.init.uniform_(norm.weight, generator=torch.Generator().manual_seed(1))
        nn.init.uniform_(norm.bias, generator=torch.Generator().manual_seed(2))
    mine = slice(6 // ranks.world * ranks.rank, 6 // ranks.world * (ranks.rank + 1))
    part, all_ = x[mine].clone().requires_grad_(), x.clone().requires_grad_()
    y, wanted = own(part), whole(all_)
    (y * along[mine]).sum().backward()
    (wanted * along).sum().backward()
    weights = [
        torch.stack([p.grad for p in norm.parameters() if p.grad is not None])
        for norm in (own, whole)
    ]
    pairs = {
        "result": (y, wanted[mine]),
        "gradient": (part.grad, all_.grad[mine] if all_.grad is not None else None),
        "gradients of weights": (ranks.sum(weights[0]), weights[1]),
        "mean": (own.running_mean, whole.running_mean),
        "variance": (own.running_var, whole.running_var),
    }
    apart = {name: float((a - b).abs().max()) for name, (a, b) in pairs.items()}  # type: ignore
    found = ranks.texts(json.dumps(apart))
    if ranks.rank == 0:
        (folder / "statistics.json").write_text(json.dumps([json.loads(each) for each in found]))


def segmented_others(ranks: Ranks, folder: Path) -> None:
    """The other stages, also with statistics."""
    for way in OTHERS:
        _train(ranks, folder, "", way, recipe)
    for way in BATCH:
        _train(ranks, folder, "batch ", way, whole_batch)
    _train(ranks, folder, "batch halves ", 3, whole_batch, stop_after=tiny.STOP)
    for way in HALVES_TOO:
        _train(ranks, folder, "halves ", way, recipe, stop_after=tiny.STOP)


def segmented_halves(ranks: Ranks, folder: Path) -> None:
    """The stopped runs resumed, with a data process."""
    for way in HALVES:
        _train(ranks, folder, "halves ", way, recipe, resume="auto", workers=1)


def segmented_halves_too(ranks: Ranks, folder: Path) -> None:
    """The others resumed."""
    for way in HALVES_TOO:
        _train(ranks, folder, "halves ", way, recipe, resume="auto")
    _train(ranks, folder, "batch halves ", 3, whole_batch, resume="auto")


SCENARIOS = (segmented, segmented_others, segmented_halves, segmented_halves_too)
