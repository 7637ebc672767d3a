"""What ranks on the pretend device do: runs of tests/engines, cut short, and counts of waits.

runs.py FOLDER
"""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "engines")]

import cait  # noqa: E402
import counts  # noqa: E402
import guards  # noqa: E402
import lamb  # noqa: E402
import localization  # noqa: E402
import precision  # noqa: E402
import ranks as scenarios  # noqa: E402
import tiny  # noqa: E402
from launched import train  # noqa: E402

from bigvit.engines.build import meet_ranks  # noqa: E402
from bigvit.ranks.joining import Ranks, connect, end  # noqa: E402
from bigvit.recipe import Run  # noqa: E402

UPDATES = 3  # most runs stop there, in mid-epoch
STOP = 2  # and the resumed one here, too
FSDP2 = "whole_fsdp2"
LAMB = ("stage 2, offloaded", "stage 3, small sub-groups")  # offloaded: of the shorter recipe
CAIT = ("lamb", 3)
RESUMED = 3  # stage
HALF = (1, 2)  # stages in bf16
FP16 = 3  # stage
RUNS = {  # by name in tests/engines/before.json
    "vit adamw": [f"whole_{stage}" for stage in scenarios.STAGES],
    "vit lamb": ["lamb 2 stage 3, small sub-groups"],
    "vit lamb, short": ["lamb 2 stage 2, offloaded"],
    "cait lamb": ["lamb 3"],
    "vit drloc": ["drloc_2"],
    "cvt drloc of every block": ["cvt_3"],
}


def engines(ranks: Ranks, folder: Path) -> None:
    """Every stage, both optimizers, offload, and models with heads and statistics."""
    for stage in scenarios.STAGES:
        path, sharding = folder / f"whole_{stage}", f"zero{stage}"
        train(ranks, path, tiny.adamw, sharding=sharding, stop_after=UPDATES)
    train(ranks, folder / FSDP2, tiny.adamw, engine="fsdp2", sharding="full", stop_after=UPDATES)
    for name in LAMB:
        lamb._train(ranks, folder, "2", name, stop_after=UPDATES)
    cait._runs(ranks, folder, [CAIT], stop_after=UPDATES)
    for name, recipe, stage in (("drloc", localization.vit, 2), ("cvt", localization.cvt, 3)):
        localization._train(ranks, folder / f"{name}_{stage}", recipe, stage, stop_after=UPDATES)


def resumed(ranks: Ranks, folder: Path) -> None:
    """A run that was stopped, with data workers after that."""
    path, sharding = folder / "halves", f"zero{RESUMED}"
    train(ranks, path, tiny.adamw, sharding=sharding, stop_after=STOP)
    options = {"resume": "auto", "stop_after": UPDATES, "workers": 1}
    train(ranks, path, tiny.adamw, sharding=sharding, **options)


def half_precision(ranks: Ranks, folder: Path) -> None:
    """bf16, and fp16 with an update that overflows."""
    for stage in HALF:
        options = {"sharding": f"zero{stage}", "micro_batch": tiny.bf16.batch_size // ranks.world}
        train(ranks, folder / f"bf16_{stage}", tiny.bf16, stop_after=STOP, **options)
    with precision.overflowing({precision.OVERFLOWS}, ranks):
        recipe = precision.recipe
        options = {"sharding": f"zero{FP16}", "micro_batch": recipe.batch_size // ranks.world}
        stop = precision.OVERFLOWS + 2
        train(ranks, folder / f"fp16_{FP16}", recipe, stop_after=stop, **options)


def main(folder: Path) -> None:
    ranks = connect(meet_ranks(Run(timeout=180)), 180)
    assert str(ranks.device) == f"pretend:{ranks.rank}", ranks.device
    for scenario in (
        engines,
        resumed,
        half_precision,
        guards.given_weights,
        scenarios.counts,
        counts.counts,
    ):
        scenario(ranks, folder)
    ranks.agree(0)
    end(0)


if __name__ == "__main__":
    main(Path(next(word for word in sys.argv[1:] if not word.startswith("--local_rank"))))
