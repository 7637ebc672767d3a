"""What a rank does to show that ResMLP is trained alike however it is sharded."""

import json
from pathlib import Path

import cait
import tiny
from launched import Way, options, train

from bigvit.ranks.joining import Ranks

RECIPES = {"adamw": tiny.resmlp_adamw, "lamb": tiny.resmlp_lamb}
WAYS: tuple[Way, ...] = (0, 1, 2, 3, "fsdp2 full", "fsdp2 grads")
EVERY = [(name, way) for name in RECIPES for way in WAYS]
ORDINARY: list[tuple[str, Way]] = [  # the others are slow
    *(("adamw", 2), ("adamw", 3), ("adamw", "fsdp2 full"), ("lamb", 1), ("lamb", 3)),
]
HALVES: tuple[Way, ...] = (3, "fsdp2 full")  # stopped and resumed


def resmlp_runs(ranks: Ranks, folder: Path) -> None:
    """Whole runs some ways, and some that are stopped and go on."""
    _runs(ranks, folder, ORDINARY)
    for way in HALVES:
        for stop in (3, tiny.SHORT):
            path = folder / f"resmlp halves {way}"
            _run(ranks, path, "adamw", way, resume="auto", stop_after=stop)


def resmlp_other_runs(ranks: Ranks, folder: Path) -> None:
    """Those of the other ways."""
    _runs(ranks, folder, [each for each in EVERY if each not in ORDINARY])


def _runs(ranks: Ranks, folder: Path, which: list[tuple[str, Way]]) -> None:
    for name, way in which:
        _run(ranks, folder / f"resmlp {name} {way}", name, way)


def _run(ranks: Ranks, path: Path, name: str, way: Way, **more: object) -> None:
    """At stage 3 every weight is fetched where it is used, and every block recomputed."""
    chosen = options(way)
    if way == 3:
        fetched = path.parent / "fetched.json"
        if ranks.rank == 0:
            fetched.write_text(json.dumps({"zero_optimization": cait.FETCHED}))
        ranks.agree(0)
        chosen = {"sharding": str(fetched), "checkpoint_activations": 1.0}
    values = {"micro_batch": 36, "stop_after": tiny.SHORT} | chosen | more
    train(ranks, path, RECIPES[name], **values)


SCENARIOS = (resmlp_runs, resmlp_other_runs)
