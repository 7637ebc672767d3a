"""What a rank does to show that Grafit and DINO together, with small crops of another size, are
the same under every engine: a memory cut by images, a centre, three heads, and a follower."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import precision
import rolled
import tiny
from followed import copies
from launched import Way, options, train
from others import two_hosts
from sklearn.datasets import load_digits

from bigvit.ranks.joining import Ranks
from bigvit.recipe import (
    Dino,
    Grafit,
    Images,
    Predictor,
    Projector,
    RandomResizedCrop,
    Recipe,
    Views,
)

UPDATES, STOP = 8, 4  # of two epochs of six, of which the last layer of DINO's head has one
IMAGES = 900  # 36 of them are left over at the end of an epoch
WAYS: tuple[Way, ...] = (0, 2, 3, "fsdp2 full", "fairscale sdp")
MORE_WAYS: tuple[Way, ...] = (1, "fsdp2 grads", "fairscale oss")
HALVED: tuple[Way, ...] = (3, "fsdp2 full")
MORE_HALVED = tuple(way for way in (*WAYS, *MORE_WAYS) if way not in HALVED)
OTHERWISE: dict[str, dict[str, Any]] = {
    "zero2 offloaded": {"sharding": "zero2_offload"},
    "zero3 offloaded": {"sharding": "zero3_offload"},
    "fsdp2 offloaded": {"engine": "fsdp2", "sharding": "full_offload"},
    "zero3 recomputed": {"sharding": "zero3", "checkpoint_activations": 0.5},
    "fsdp2 recomputed": {"engine": "fsdp2", "checkpoint_activations": 0.5},
}
COMPILED: tuple[Way, ...] = (2, "fsdp2 full", "fairscale sdp")
SCALED: tuple[Way, ...] = (*range(4), "fsdp2 full", "fairscale sdp")


def crop(low: float, high: float) -> RandomResizedCrop:
    return RandomResizedCrop(scale=(low, high), ratio=(3 / 4, 4 / 3), interpolation="bicubic")


data = Images(
    dataset="scikit-learn's digits",
    train_images=IMAGES,
    test_images=0,
    held_out=0.0,
    classes=10,
    image_size=8,
    crop=crop(0.4, 1.0),
    flip=0.0,
    augment=None,
    erasing=0.0,
    views=(
        Views(2, 8, crop(0.4, 1.0), flip=0.0, augment=None, erasing=0.0),
        Views(2, 4, crop(0.1, 0.4), flip=0.5, augment=None, erasing=0.0),
    ),
    level="own",
    repeats=1,
    mix=None,
    mean=(0.305,) * 3,
    std=(0.376,) * 3,
    test_crop_ratio=1.0,
    decode="exact",
)
recipe: Recipe = replace(
    tiny.lamb,
    model=replace(tiny.lamb.model, depth=2, in_chans=3),
    data=data,
    optim=replace(tiny.adamw.optim, weight_decay_end=0.4),
    objectives=(
        Grafit(
            weight=1.0,
            knn=1.0,
            instance=1.0,
            sigma=0.1,
            projector=Projector(hidden_dim=24, norm="none", dim=8),
            predictor=Predictor(hidden_dim=16, norm="none"),
            views=1,
        ),
        Dino(
            weight=1.0,
            outputs=32,
            hidden_dim=16,
            hidden_layers=2,
            bottleneck_dim=8,
            norm="none",
            gain="one",
            student_temperature=0.1,
            teacher_temperature=(0.04, 0.07),
            warmup_epochs=2,
            centre_momentum=0.9,
            held_epochs=1,
            large=(0, 1),
            small=(2,),
        ),
    ),
    schedule=replace(tiny.adamw.schedule, epochs=2, warmup_epochs=0),
    ema=0.8,
    ema_end=1.0,
)


scaled = replace(  # a gradient that does not overflow by itself
    recipe,
    precision="fp16",
    batch_size=48,
    model=replace(recipe.model, depth=1),
    objectives=tuple(replace(each, weight=1e-4) for each in recipe.objectives),
)
longer = replace(recipe, schedule=replace(recipe.schedule, epochs=4))


def write_digits(root: Path) -> Path:
    """The first scanned digits as MNIST's files are laid out (big-endian header, then bytes)."""
    found: Any = load_digits()
    pixels = (found.images[:IMAGES] * (255 / 16)).astype(np.uint8)
    root.mkdir(parents=True, exist_ok=True)
    for kind, values in (("images-idx3", pixels), ("labels-idx1", found.target[:IMAGES])):
        header = np.array([0x800 + values.ndim, *values.shape], ">i4").tobytes()
        content = header + values.astype(np.uint8).tobytes()
        (root / f"train-{kind}-ubyte").write_bytes(content)
    return root


def digits(ranks: Ranks, folder: Path) -> Path:
    """Where they are written."""
    root = folder / "digits"
    if ranks.rank == 0 and not root.exists():
        write_digits(root)
    ranks.agree(0)
    return root


def run(
    ranks: Ranks,
    folder: Path,
    name: str,
    way: Way | dict[str, Any],
    of: Recipe = recipe,
    **more: Any,
) -> Path:
    """A run of the digits."""
    root = digits(ranks, folder)
    chosen = way if isinstance(way, dict) else options(way)
    given = {"stop_after": UPDATES, **chosen, "data_root": root, **more}
    train(ranks, folder / name, of, **given)
    return folder / name


def halves(ranks: Ranks, folder: Path, way: Way) -> None:
    """One that is stopped in mid-epoch, for others to resume, and a copy that is resumed here."""
    path = run(ranks, folder, f"halves {way}", way, stop_after=STOP)
    copies(ranks, path, "again", "elsewhere")
    run(ranks, folder, f"again {way}", way, resume="auto")


def grafit_dino(ranks: Ranks, folder: Path) -> None:
    """Without a stop; and some that are stopped."""
    for way in WAYS:
        run(ranks, folder, f"whole {way}", way)
    for way in HALVED:
        halves(ranks, folder, way)


def grafit_dino_more(ranks: Ranks, folder: Path) -> None:
    """What is left of both."""
    for way in MORE_WAYS:
        run(ranks, folder, f"whole {way}", way)
    for way in MORE_HALVED:
        halves(ranks, folder, way)


def grafit_dino_resumed(ranks: Ranks, folder: Path, ways: Sequence[Way] = HALVED) -> None:
    """The stopped ones resumed on another number of ranks."""
    micro = tiny.cut(recipe, ranks.world).micro_batch
    for way in ways:
        run(ranks, folder, f"halves {way}", way, resume="auto", micro_batch=micro)


def grafit_dino_resumed_more(ranks: Ranks, folder: Path) -> None:
    """The others."""
    grafit_dino_resumed(ranks, folder, MORE_HALVED)


def grafit_dino_four(ranks: Ranks, folder: Path) -> None:
    """On four ranks, also as on two hosts; and what two ranks began."""
    micro = tiny.cut(recipe, ranks.world).micro_batch
    for way in (*HALVED, "fsdp2 node"):
        with two_hosts(ranks, way):
            run(ranks, folder, f"four {way}", way, micro_batch=micro)
    zero = folder / "zero3 within hosts.json"
    if ranks.rank == 0:
        values = {"stage": 3, "zero_hpz_partition_size": 2}
        zero.write_text(json.dumps({"zero_optimization": values}))
    ranks.agree(0)
    run(ranks, folder, f"four {zero.stem}", {"sharding": str(zero)}, micro_batch=micro)
    for way in HALVED:
        run(ranks, folder, f"elsewhere {way}", way, resume="auto", micro_batch=micro)


def grafit_dino_otherwise(ranks: Ranks, folder: Path) -> None:
    """What lies on the host, and what is computed again."""
    for name, how in OTHERWISE.items():
        run(ranks, folder, name, how)


def grafit_dino_compiled(ranks: Ranks, folder: Path) -> None:
    """Blocks of both networks."""
    for way in COMPILED:
        run(ranks, folder, f"compiled {way}", way, compile=True)


def grafit_dino_fp16(ranks: Ranks, folder: Path) -> None:
    """With an update that overflows and a checkpoint after each; stopped behind it and resumed."""
    with precision.allowed(), precision.overflowing({precision.OVERFLOWS}, ranks):
        for way in SCALED:
            more: dict[str, Any] = {"of": scaled, "micro_batch": 24, "checkpoint_every": 1}
            run(ranks, folder, f"fp16 {way}", way, keep=UPDATES, **more)
            run(ranks, folder, f"fp16 halves {way}", way, stop_after=STOP, **more)
            run(ranks, folder, f"fp16 halves {way}", way, resume="auto", **more)


def grafit_dino_rolled(ranks: Ranks, folder: Path) -> None:
    """Back to the initial weights and to a checkpoint, beside runs that never saw the batches."""
    root = digits(ranks, folder)
    for way in HALVED:
        rolled.pair(ranks, folder, way, longer, data_root=root)


SCENARIOS = (
    grafit_dino,
    grafit_dino_more,
    grafit_dino_resumed,
    grafit_dino_resumed_more,
    grafit_dino_four,
    grafit_dino_otherwise,
    grafit_dino_compiled,
    grafit_dino_fp16,
    grafit_dino_rolled,
)
