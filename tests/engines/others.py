"""What a rank does to show that torch's own sharding and fairscale are as good as DeepSpeed."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import guards
import localization
import precision
import tiny
from launched import Way, options, train

from bigvit.ranks.joining import Ranks
from bigvit.recipe import Lamb

WAYS = ("fsdp2 full", "fsdp2 grads", "fairscale oss", "fairscale sdp")
ON_FOUR = (*WAYS, "fsdp2 node")
EACH = ("fsdp2 full", "fairscale sdp")  # what is cut, and what is whole
# trained by each optimizer in ordinary tests; the other one differs in when it is sent
ON_TWO = {"adamw": EACH, "lamb": ("fsdp2 grads", "fairscale oss")}
# a head of its own, an average, clipping, accumulation, decay groups and samples that are dropped
adamw = replace(localization.vit, schedule=tiny.adamw.schedule)
lamb = replace(adamw, optim=Lamb(lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1))
RECIPES = {"adamw": adamw, "lamb": lamb}
OPTIONS: dict[str, dict[str, Any]] = {
    "offload": {"sharding": "full_offload"},
    "recompute": {"sharding": "full", "checkpoint_activations": 0.5},
}
LEGS: tuple[Way, ...] = (
    # each of three engines reads what each of the others wrote
    *(3, "fsdp2 full", "fairscale oss", 1, "fairscale sdp", "fsdp2 grads", 2),
)


def others(ranks: Ranks, folder: Path) -> None:
    """Runs without a stop."""
    for name in RECIPES:
        for way in {1: EACH, 2: ON_TWO[name], 4: ON_FOUR}[ranks.world]:
            _whole(ranks, folder, name, way)


def others_rest(ranks: Ranks, folder: Path) -> None:
    """Those of two ranks that ordinary tests leave out."""
    for name in RECIPES:
        for way in WAYS:
            if way not in ON_TWO[name]:
                _whole(ranks, folder, name, way)


def _whole(ranks: Ranks, folder: Path, name: str, way: str) -> None:
    recipe, path = RECIPES[name], folder / f"{name} {way} {ranks.world}"
    micro = tiny.cut(recipe, ranks.world).micro_batch
    with two_hosts(ranks, way):
        train(ranks, path, recipe, micro_batch=micro, **options(way))


@contextmanager
def two_hosts(ranks: Ranks, way: Way) -> Generator[None]:
    """As on two hosts, where ranks of one are to share the model among them."""
    before = {name: os.environ.get(name) for name in ("LOCAL_SIZE", "LOCAL_RANK")}
    if way == "fsdp2 node":
        os.environ |= {"LOCAL_SIZE": "2", "LOCAL_RANK": str(ranks.rank % 2)}
    try:
        yield
    finally:
        os.environ |= {name: value for name, value in before.items() if value is not None}


def others_halves(ranks: Ranks, folder: Path) -> None:
    """Stopped in mid-epoch and resumed, in float32 and bf16."""
    half = replace(tiny.bf16, model=lamb.model)
    for way in WAYS:
        path = folder / f"halves {way}"
        train(ranks, path, lamb, stop_after=tiny.STOP, **options(way))
        train(ranks, path, lamb, resume="auto", **options(way))
        train(ranks, folder / f"bf16 {way}", half, **options(way))
        path = folder / f"bf16 halves {way}"
        train(ranks, path, half, stop_after=tiny.STOP, **options(way))
        train(ranks, path, half, resume="auto", **options(way))


def others_chain(ranks: Ranks, folder: Path) -> None:
    """One run that goes from engine to engine."""
    for name, recipe in RECIPES.items():
        for leg, way in enumerate(LEGS):
            stop = tiny.UPDATES if leg + 1 == len(LEGS) else 2 * leg + 1
            train(
                ranks,
                folder / f"chain {name}",
                recipe,
                resume="auto",
                stop_after=stop,
                **options(way),
            )


def others_guards(ranks: Ranks, folder: Path) -> None:
    """What DeepSpeed's stages show in guards.py."""
    guards.initial_weights(ranks, folder, WAYS)
    guards.given_weights(ranks, folder, EACH)
    guards.jumped(ranks, folder, EACH)
    guards.averages(ranks, folder, WAYS)


def others_options(ranks: Ranks, folder: Path) -> None:
    """fsdp2 with what else it can do."""
    for name, more in OPTIONS.items():
        train(ranks, folder / f"fsdp2 {name}", lamb, engine="fsdp2", **more)


def others_statistics(ranks: Ranks, folder: Path) -> None:
    """BatchNorm's statistics, on the same cut of the batches."""
    for way in (2, *EACH):
        more = {"micro_batch": localization.MICRO_BATCH, **options(way)}
        train(ranks, folder / f"cvt {way}", localization.cvt, **more)


def others_fp16(ranks: Ranks, folder: Path) -> None:
    """An overflow skips one update; stopped and resumed after it."""
    precision.fp16(ranks, folder, EACH, EACH)


ORDINARY = (others, others_chain, others_fp16)
MORE = (others_rest, others_halves, others_guards, others_options, others_statistics)
SCENARIOS = (*ORDINARY, *MORE)
