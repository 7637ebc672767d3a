"""What a rank does to show that LAMB is exact however its tensors are cut."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed.comm as ds_comm
import tiny
import torch
from launched import train, whole
from timm.optim.lamb import Lamb as TimmLamb

from bigvit import optim
from bigvit.data.loader import train_batches
from bigvit.data.prepare import Prepare
from bigvit.data.sources import DigitsSource
from bigvit.engines.build import build_engine
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Rates, Recipe, Run

OFFLOAD = {"device": "cpu"}
SHARDINGS: dict[str, dict[str, Any]] = {
    "stage 0": {"stage": 0},
    "stage 1": {"stage": 1},
    "stage 2": {"stage": 2},
    "stage 3": {"stage": 3},
    "stage 1, round robin": {"stage": 1, "round_robin_gradients": True},
    "stage 2, round robin": {"stage": 2, "round_robin_gradients": True},
    "stage 2, offloaded": {"stage": 2, "offload_optimizer": OFFLOAD},
    "stage 3, small sub-groups": {
        "stage": 3,
        "sub_group_size": 5000,
        "stage3_param_persistence_threshold": 400,  # as a large model: matrices are fetched
        "stage3_prefetch_bucket_size": 5000,
    },
    "stage 3, offloaded": {
        "stage": 3,
        "sub_group_size": 5000,
        "offload_optimizer": OFFLOAD,
        "offload_param": OFFLOAD,
    },
}
SECONDARY = "stage 3, secondary shards"
MORE_RANKS = ("stage 2, round robin", "stage 3, small sub-groups")
# whole runs of slow tests; single updates, and runs of the others, are shown in ordinary ones
SLOW = ("stage 1", "stage 1, round robin", "stage 2")
EVALUATED = ("stage 0", *MORE_RANKS)  # on two ranks for two epochs, with the average, too
UPDATES = 2  # beside timm's
HALF_MICRO_BATCH = 72  # no accumulation on two ranks: stages 1 and 2 round it differently


def sharding(ranks: Ranks, folder: Path, name: str) -> str:
    """The path of a DeepSpeed JSON with one of the shardings."""
    path = folder / f"{name}.json"
    zero = SHARDINGS.get(name, {"stage": 3, "zero_hpz_partition_size": ranks.world})
    if ranks.rank == 0:
        path.write_text(json.dumps({"zero_optimization": zero}))
    ranks.agree(0)
    return str(path)


def recipe_of(world: int, name: str) -> Recipe:
    """What is trained at a sharding."""
    return tiny.lamb if world == 2 and name in EVALUATED else tiny.lamb_short


def _train(ranks: Ranks, folder: Path, what: str, name: str, **options: Any) -> None:
    """A run at a sharding."""
    micro_batch = tiny.cut(tiny.lamb, ranks.world).micro_batch
    options |= {"sharding": sharding(ranks, folder, name), "micro_batch": micro_batch}
    train(ranks, folder / f"lamb {what} {name}", recipe_of(ranks.world, name), **options)


def lamb_runs(ranks: Ranks, folder: Path) -> None:
    """Whole runs with LAMB and an average of the weights: most shardings on two ranks."""
    for name in SHARDINGS if ranks.world == 2 else MORE_RANKS:
        if name not in SLOW:
            _run(ranks, folder, name)


def lamb_more_runs(ranks: Ranks, folder: Path) -> None:
    """The others."""
    for name in SLOW:
        _run(ranks, folder, name)


def _run(ranks: Ranks, folder: Path, name: str) -> None:
    _train(ranks, folder, str(ranks.world), name, evaluate_ema=name in EVALUATED)


def lamb_halves(ranks: Ranks, folder: Path) -> None:
    """The same, stopped in mid-epoch and resumed."""
    for name in ("stage 2, offloaded", "stage 3, small sub-groups"):
        _train(ranks, folder, "halves", name, stop_after=tiny.STOP)
        _train(ranks, folder, "halves", name, resume="auto")


def lamb_updates(ranks: Ranks, folder: Path) -> None:
    """Single updates beside timm's LAMB on whole parameters, given the same gradients: ours at
    every sharding, and timm's own under ZeRO, which has to fail."""
    found: dict[str, Any] = {}
    for name in SHARDINGS if ranks.world == 2 else MORE_RANKS:
        found[name] = _updates(ranks, sharding(ranks, folder, name))
    if ranks.world == 2:
        with _stock():
            for stage in (1, 2, 3):
                name = f"stage {stage}"
                found[f"stock, {name}"] = _updates(ranks, sharding(ranks, folder, name))
    if ranks.rank == 0:
        (folder / f"lamb_updates_{ranks.world}.json").write_text(json.dumps(found))


@contextmanager
def _stock() -> Generator[None]:
    """timm's LAMB in the place of ours."""
    ours = optim.build

    def stock(recipe: Any, _ema: object, groups: Any, **_: bool) -> torch.optim.Optimizer:
        values = {"betas": recipe.betas, "eps": recipe.eps, "max_grad_norm": None}
        return TimmLamb(groups, lr=0.0, **values)

    optim.build = stock
    try:
        yield
    finally:
        optim.build = ours


def _updates(ranks: Ranks, path: str) -> dict[str, float]:
    """The largest relative difference of a parameter from its reference, and bytes sent."""
    recipe, layout = tiny.lamb, tiny.cut(tiny.lamb, ranks.world)
    engine: Any = build_engine(recipe, Run(sharding=path), layout, ranks)
    inside = engine.inside
    gradients: dict[str, torch.Tensor] = {}

    def keep(optimizer: torch.optim.Optimizer, *_: object) -> None:
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for part, flat, offset in inside.parts():
            if id(flat) in stepped and part.writer:
                whole = gradients.setdefault(part.name, torch.zeros(part.shape))
                piece = flat.grad.view(-1)[offset : offset + part.stop - part.start]
                whole.view(-1)[part.start : part.stop] = piece

    inside.optimizer.register_step_pre_hook(keep)
    weights = whole(engine, ranks)
    twin = {name: torch.nn.Parameter(weight.clone()) for name, weight in weights.items()}
    groups = [
        {"params": [p for p in twin.values() if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in twin.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    for name, p in twin.items():  # class token and positions are matrices that are not decayed
        if name in engine.task.no_weight_decay():
            groups[0]["params"] = [q for q in groups[0]["params"] if q is not p]
            groups[1]["params"].append(p)
    reference = TimmLamb(groups, lr=1e-2, eps=1e-8, max_grad_norm=None)
    batches = train_batches(
        DigitsSource("train"), recipe, layout, ranks.rank, 0, 0, engine.task.draws
    )
    prepare = Prepare(recipe, ranks.device)
    worst, sent = 0.0, {"norms": 0, "DeepSpeed": 0}
    with _counting(sent, inside.optimizer):
        for _ in range(UPDATES):
            gradients.clear()
            micro = prepare.later(next(batches))
            engine.update(micro, Rates(1e-2))
            engine.predict(
                micro[0]().images
            )  # stage 3 must not take it for a part of the next update
            for name, p in twin.items():
                p.grad = ranks.sum(gradients.get(name, torch.zeros(p.shape)))
            reference.step()
            for name, weight in whole(engine, ranks).items():
                difference = (weight - twin[name]).double().norm() / twin[name].double().norm()
                worst = max(worst, float(difference))
                twin[name].data.copy_(weight)
    return {"difference": worst, **sent}


@contextmanager
def _counting(sent: dict[str, int], optimizer: Any) -> Generator[None]:
    """Count the bytes that a rank gives to collectives: those of norms, and DeepSpeed's own."""
    originals = {}

    def counted(total: Any, values: torch.Tensor) -> torch.Tensor:
        sent["norms"] += values.numel() * values.element_size()
        return total(values)

    for flat, shard in getattr(optimizer, "shards", {}).items():
        optimizer.shards[flat] = replace(shard, total=partial(counted, shard.total))

    def watch(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
            sent["DeepSpeed"] += max(t.numel() * t.element_size() for t in tensors)
            return original(*args, **kwargs)

        return call

    names = ("all_reduce", "reduce_scatter_fn", "all_gather_into_tensor", "allgather_fn", "reduce")
    for name in names:
        originals[name] = getattr(ds_comm, name)
        setattr(ds_comm, name, watch(originals[name]))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(ds_comm, name, original)


def lamb_half_precision(ranks: Ranks, folder: Path) -> None:
    """LAMB in bf16 at every stage."""
    model = replace(tiny.lamb.model, depth=1)  # bf16 is slow on a CPU
    recipe = replace(tiny.lamb_short, precision="bf16", model=model)
    for stage in range(4):
        options = {"sharding": f"zero{stage}", "micro_batch": HALF_MICRO_BATCH}
        train(ranks, folder / f"lamb bf16 {stage}", recipe, **options)


def lamb_secondary_shards(ranks: Ranks, folder: Path) -> None:
    """Secondary shards within a node; DeepSpeed makes their groups once a process."""
    _train(ranks, folder, "2", SECONDARY)


SCENARIOS = (
    lamb_runs,
    lamb_more_runs,
    lamb_halves,
    lamb_updates,
    lamb_half_precision,
    lamb_secondary_shards,
)
