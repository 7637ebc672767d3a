"""What a rank does to show that PatchConvNet, and attention pooling by a query a class, are trained
alike however they are sharded."""

import json
from dataclasses import replace
from pathlib import Path

import tiny
from cait import FETCHED
from launched import Way, options, train

from bigvit.ranks.joining import Ranks
from bigvit.recipe import AttentionPooling, PatchConvNet, StochasticDepth, Swin

GROUPS = StochasticDepth(rate=0.3, group=4)
ONE = AttentionPooling(heads=1, queries="one", mlp_ratio=2.5, layer_scale=0.1)
EACH = AttentionPooling(heads=2, queries="classes", mlp_ratio=2.5, layer_scale=0.1)
RECIPES = {
    "patchconvnet": replace(
        tiny.cait_lamb,
        model=PatchConvNet(2, "convolutions", 36, 3, "layer", 0.1, ONE, GROUPS, 1, 10),
    ),
    "swin": replace(
        tiny.cait_adamw, model=Swin(1, 12, (1, 1), (1, 2), 4, 2.0, EACH, GROUPS, 1, 10)
    ),
}
WAYS: tuple[Way, ...] = (0, 1, 2, 3, "fsdp2 full")
EVERY = [(name, way) for name in RECIPES for way in WAYS]
ORDINARY: list[tuple[str, Way]] = [
    *(("patchconvnet", way) for way in (2, 3, "fsdp2 full")),
    *(("swin", way) for way in (3, "fsdp2 full")),
]
HALVES: tuple[Way, ...] = (3, "fsdp2 full")


def pooling_runs(ranks: Ranks, folder: Path) -> None:
    """Whole runs some ways, and PatchConvNet's in halves."""
    _runs(ranks, folder, ORDINARY)
    for way in HALVES:
        path = folder / f"halves {way}"
        for more in ({"stop_after": tiny.STOP}, {"stop_after": tiny.SHORT, "resume": "auto"}):
            _run(ranks, path, "patchconvnet", way, **more)


def pooling_other_runs(ranks: Ranks, folder: Path) -> None:
    """Those the other ways."""
    _runs(ranks, folder, [each for each in EVERY if each not in ORDINARY])


def _runs(ranks: Ranks, folder: Path, which: list[tuple[str, Way]]) -> None:
    for name, way in which:
        _run(ranks, folder / f"{name} {way}", name, way, stop_after=tiny.SHORT)


def _run(ranks: Ranks, path: Path, name: str, way: Way, **more: object) -> None:
    """At stage 3 every block is recomputed, and weights are fetched where they are used."""
    given = options(way)
    if way == 3:
        given["sharding"] = fetched(ranks, path.parent)
    recompute = {"checkpoint_activations": float(way == 3)}
    train(ranks, path, RECIPES[name], **{**given, **recompute, "micro_batch": 36, **more})


def fetched(ranks: Ranks, folder: Path) -> str:
    """The path of `FETCHED` as a sharding."""
    path = folder / "fetched.json"
    if ranks.rank == 0 and not path.exists():
        path.write_text(json.dumps({"zero_optimization": FETCHED}))
    ranks.agree(0)
    return str(path)


SCENARIOS = (pooling_runs, pooling_other_runs)
