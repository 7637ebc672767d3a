"""What ranks do to show that any of timm's models is trained as `single` trains it."""

import gc
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import tiny
import torch
from launched import Way, options, whole
from reference import Weights
from timm import create_model
from timm_list import ARCHITECTURES, QUICK, REFUSED

from bigvit.checkpoint.load import fill
from bigvit.checkpoint.manifest import read_manifest
from bigvit.checkpoint.model import read_checkpoint
from bigvit.checkpoint.save import Saver
from bigvit.data.prepare import Inputs, Targets
from bigvit.engines import build
from bigvit.engines.engine import Pending
from bigvit.engines.single import SingleEngine
from bigvit.export.folder import export
from bigvit.models.timm_skeleton import counted
from bigvit.ranks.joining import Ranks, alone
from bigvit.recipe import (
    AdamW,
    Images,
    RandomResizedCrop,
    Rates,
    Recipe,
    Run,
    StochasticDepth,
    Timm,
    TimmSizes,
    batch_layout,
)
from bigvit.recipe.store import to_json
from bigvit.task import Task

MICRO, RANKS = 4, 2


def recipe_of(family: str) -> Recipe:
    """Two micro-batches an update, a quarter of all branches dropped. Adam's eps is so large that
    it does not magnify rounding."""
    text, image_size = ARCHITECTURES[family]
    name, *arguments = text.split()
    drop_path, nothing = StochasticDepth(rate=0.25, group=MICRO), TimmSizes(0, 0, 0)
    model = Timm(name, tuple(arguments), nothing, drop_path, in_chans=3, num_classes=10)
    crop = RandomResizedCrop(scale=(0.5, 1.0), ratio=(1.0, 1.0), interpolation="bicubic")
    return replace(
        tiny.adamw,
        model=replace(model, sizes=counted(model, image_size)),
        data=Images(
            dataset="none",
            train_images=64,
            test_images=0,
            classes=10,
            image_size=image_size,
            crop=crop,
            flip=0.0,
            augment=None,
            erasing=0.0,
            repeats=1,
            mix=None,
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
            test_crop_ratio=1.0,
            decode="exact",
            held_out=0.0,
            views=(),
            level="own",
        ),
        optim=AdamW(
            lr=1e-2, betas=(0.9, 0.999), eps=1e-3, weight_decay=0.05, weight_decay_end=None
        ),
        layer_decay=0.9,
        batch_size=MICRO * RANKS,
    )


def images_of(recipe: Recipe, number: int) -> torch.Tensor:
    size: Any = recipe.data.image_size
    generator = torch.Generator().manual_seed(number)
    return torch.randn(recipe.batch_size, 3, size, size, generator=generator)


def micro_batch(task: Task, number: int, start: int) -> Inputs:
    recipe, stop = task.recipe, start + MICRO
    classes = torch.arange(start, stop) % 10
    dense = torch.nn.functional.one_hot(classes, 10).float()
    targets = Targets(classes=classes, dense=dense)
    images = images_of(recipe, number)[start:stop]
    return Inputs(images, targets, task.draws(number, (start, stop)), number)


def pending(task: Task, number: int, ranks: range) -> list[Pending]:
    return [partial(micro_batch, task, number, rank * MICRO) for rank in ranks]


def train_alone(recipe: Recipe, rounding: float = 0.0) -> tuple[Weights, Weights]:
    """Weights before and after two updates of `single`; first changed as rounding might."""
    engine = SingleEngine(lambda: Task(recipe), recipe, alone())
    build.fill(engine, build.outline(recipe).initial_weight)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in engine.task.parameters():
            p.mul_(1 + rounding * torch.randn(p.shape, generator=generator))
    found = []
    for number in range(2):
        found.append({n: p.detach().clone() for n, p in engine.task.named_parameters()})
        engine.update(pending(engine.task, number, range(RANKS)), Rates(recipe.optim.lr))
    return found[0], {n: p.detach().clone() for n, p in engine.task.named_parameters()}


def apart(a: Weights, b: Weights, first: Weights) -> float:
    """How far two trained models are from each other, over how far one went."""
    assert a.keys() == b.keys() == first.keys()
    between = sum(float((a[n].double() - b[n].double()).square().sum()) for n in a)
    return (between / sum(float((b[n] - first[n]).double().square().sum()) for n in a)) ** 0.5


def timm_models(
    ranks: Ranks, folder: Path, families: Sequence[str] = QUICK, ways: Sequence[Way] = (1, 3)
) -> None:
    """Each family in some ways; in the last one it is resumed and exported, too. What was found is
    written after each: it takes long."""
    for family in families:
        recipe, own = recipe_of(family), dict[str, Any]()
        first, last = train_alone(recipe) if ranks.rank == 0 else ({}, {})
        if ranks.rank == 0:
            own["yardstick"] = apart(train_alone(recipe, rounding=6e-8)[1], last, first)
        own["batch_norm"] = any(
            "running_mean" in name for name in build.outline(recipe).state_dict()
        )
        for way in ways:
            last_way = way == ways[-1]
            run = folder / f"{family} {way}"
            own[str(way)] = _at(ranks, run, recipe, way, first, last, resume=last_way)
            gc.collect()
        if ranks.rank == 0:
            path = folder / "timm_models.json"
            before = json.loads(path.read_text()) if path.exists() else {}
            path.write_text(json.dumps(before | {family: before.get(family, {}) | own}))


def timm_models_all(ranks: Ranks, folder: Path) -> None:
    """All that are not in the ordinary tests."""
    rest = (family for family in ARCHITECTURES if family not in (*QUICK, *REFUSED))
    timm_models(ranks, folder, list(rest))


def timm_fsdp2(ranks: Ranks, folder: Path) -> None:
    """Some with torch's sharding, and at the other stages."""
    timm_models(ranks, folder, QUICK, ("fsdp2 full", 2, 0))


def _at(
    ranks: Ranks,
    folder: Path,
    recipe: Recipe,
    way: Way,
    first: Weights,
    last: Weights,
    resume: bool,
) -> dict[str, Any]:
    """One run, whose blocks are recomputed at stage 3; and the same from its first checkpoint, and
    its export."""
    run = Run(**options(way), checkpoint_activations=float(way == 3))
    layout, mine = batch_layout(recipe, ranks.world, MICRO), range(ranks.rank, ranks.rank + 1)
    engine: Any = build.build_engine(recipe, run, layout, ranks)
    saver = Saver(engine, folder, to_json(recipe), 2, background=False)
    paths = []
    for number in range(2):
        engine.update(pending(engine.task, number, mine), Rates(recipe.optim.lr))
        paths.append(saver.save(number + 1))
    weights = whole(engine, ranks)
    found = {"apart": apart(weights, last, first)} if ranks.rank == 0 else {}
    if not resume:
        return found
    again: Any = build.build_engine(recipe, run, layout, ranks)
    fill(again, paths[0], read_manifest(paths[0]))
    again.update(pending(again.task, 1, mine), Rates(recipe.optim.lr))
    resumed = whole(again, ranks)
    same = all(torch.equal(weights[name], resumed[name]) for name in weights)
    if ranks.rank:
        return {}
    return {**found, "resumed": same, "exported": _exported(paths[1], folder / "export", recipe)}


def _exported(checkpoint: Path, folder: Path, recipe: Recipe) -> float:
    """The largest difference of our logits and those of timm's model that an export makes."""
    export(checkpoint, folder)
    theirs: Any = create_model(f"local-dir:{folder}", pretrained=True).eval()
    task = Task(recipe)
    task.model.load_state_dict(read_checkpoint(checkpoint).model, strict=False)
    images = images_of(recipe, 2)[:2]
    with torch.no_grad():
        ours = task.predict(images)
        return float((theirs(images) - ours).abs().max() / ours.abs().max())


SCENARIOS = (timm_models, timm_models_all, timm_fsdp2)
