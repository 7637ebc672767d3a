"""What a rank does to show that SGD with momentum is the same however its tensors are cut."""

from pathlib import Path

import lamb
import tiny
from launched import Way, options, train

from bigvit.ranks.joining import Ranks

WAYS: tuple[Way, ...] = (0, 1, 2, 3, "fsdp2 full", "fairscale oss", "fairscale sdp")
OFFLOADED = "stage 2, offloaded"
RESUMED: tuple[Way, ...] = (1, 3, "fsdp2 full")


def sgd_runs(ranks: Ranks, folder: Path) -> None:
    """Whole runs, every way."""
    micro = tiny.cut(tiny.sgd_short, ranks.world).micro_batch
    for way in WAYS:
        train(ranks, folder / f"sgd {way}", tiny.sgd_short, micro_batch=micro, **options(way))
    sharding = lamb.sharding(ranks, folder, OFFLOADED)
    path = folder / f"sgd {OFFLOADED}"
    train(ranks, path, tiny.sgd_short, micro_batch=micro, sharding=sharding)


def sgd_halves(ranks: Ranks, folder: Path) -> None:
    """Stopped in mid-epoch and resumed."""
    micro = tiny.cut(tiny.sgd_short, ranks.world).micro_batch
    for way in RESUMED:
        path, more = folder / f"sgd halves {way}", {"micro_batch": micro, **options(way)}
        train(ranks, path, tiny.sgd_short, stop_after=tiny.STOP, **more)
        train(ranks, path, tiny.sgd_short, resume="auto", **more)


SCENARIOS = (sgd_runs, sgd_halves)
