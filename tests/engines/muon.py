"""What a rank does to show that Muon is exact however its matrices are cut."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import lamb
import precision
import tiny
from launched import Way, options, train

from bigvit.ranks.joining import Ranks

STAGES: tuple[Way, ...] = (0, 1, 2, 3)
OTHERS = ("fsdp2 full", "fsdp2 grads", "fsdp2 full_offload", "fairscale oss", "fairscale sdp")
CUT = ("stage 2, round robin", "stage 2, offloaded", "stage 3, small sub-groups")
LEGS: tuple[Way, ...] = (1, "fsdp2 full", 3)
RESUMED: tuple[Way, ...] = (*STAGES, "fsdp2 full")
FP16: tuple[Way, ...] = (1, 3, "fsdp2 full")
BF16 = replace(tiny.bf16, optim=replace(tiny.muon.optim, ns_precision="bf16"))


def _train(ranks: Ranks, path: Path, **more: Any) -> None:
    micro = tiny.cut(tiny.muon_short, ranks.world).micro_batch
    train(ranks, path, tiny.muon_short, micro_batch=micro, **more)


def muon_chain(ranks: Ranks, folder: Path) -> None:
    """A run that goes from engine to engine."""
    for leg, way in enumerate(LEGS):
        path = folder / f"muon {ranks.world} chain"
        _train(ranks, path, resume="auto", stop_after=2 * (leg + 1), **options(way))


def muon_more(ranks: Ranks, folder: Path) -> None:
    """Whole runs, each other way of cutting matrices."""
    for way in (*STAGES, *OTHERS):
        _train(ranks, folder / f"muon {ranks.world} {way}", **options(way))
    for name in CUT:
        path = folder / f"muon {ranks.world} {name}"
        _train(ranks, path, sharding=lamb.sharding(ranks, folder, name))


def muon_elsewhere(ranks: Ranks, folder: Path) -> None:
    """A run that two ranks stopped goes on here."""
    _train(ranks, folder / "muon elsewhere", resume="auto", **options(3))


def muon_halves(ranks: Ranks, folder: Path) -> None:
    """Stopped in mid-epoch and resumed; and in bf16, with its iterations in bf16."""
    _train(ranks, folder / "muon elsewhere", stop_after=tiny.STOP, **options(1))
    for way in RESUMED:
        path = folder / f"muon halves {way}"
        _train(ranks, path, stop_after=tiny.STOP, **options(way))
        _train(ranks, path, resume="auto", **options(way))
        path, micro = folder / f"muon bf16 {way}", lamb.HALF_MICRO_BATCH
        train(ranks, path, BF16, micro_batch=micro, **options(way))
        path = folder / f"muon bf16 halves {way}"
        train(ranks, path, BF16, stop_after=tiny.STOP, micro_batch=micro, **options(way))
        train(ranks, path, BF16, resume="auto", micro_batch=micro, **options(way))


def muon_fp16(ranks: Ranks, folder: Path) -> None:
    """An overflow skips one update; stopped and resumed after it."""
    recipe = replace(precision.recipe, optim=BF16.optim)
    precision.fp16(ranks, folder, FP16, FP16, recipe, "muon fp16")


SCENARIOS = (muon_chain, muon_more, muon_elsewhere, muon_halves, muon_fp16)
