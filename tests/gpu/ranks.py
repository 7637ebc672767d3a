"""What the ranks of the tests here do, on as many GPUs as there are, in the same processes.

    deepspeed --num_accelerators N tests/gpu/ranks.py FOLDER SCENARIO...

Each scenario leaves run folders in FOLDER, or what it found in FOLDER/SCENARIO.json.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS / "engines"), str(TESTS.parent)]

from bigvit.engines import deterministic  # noqa: E402

FIXED = {"first_part", "second_part", "under_way"}  # by kernels that sum in a fixed order
if FIXED.intersection(sys.argv):
    deterministic.set_variables()  # before CUDA and NCCL start

import torch  # noqa: E402
from launched import train  # noqa: E402

from benchmarks.reads import waiting  # noqa: E402
from bigvit.data.loader import train_batches  # noqa: E402
from bigvit.data.prepare import Prepare  # noqa: E402
from bigvit.data.sources import DigitsSource  # noqa: E402
from bigvit.engines.build import build_engine, meet_ranks  # noqa: E402
from bigvit.engines.engine import Engine  # noqa: E402
from bigvit.ranks.joining import Ranks, connect, end  # noqa: E402
from bigvit.recipe import Lamb, Layout, Rates, Recipe, Run, StochasticDepth  # noqa: E402
from bigvit.recipes.digits import digits_vit  # noqa: E402

STAGES = (1, 2, 3)
GPU = torch.cuda.is_available()
EPOCHS = 5 if GPU else 1  # of the demo
LENGTH, STOP, EVERY = (23, 9, 4) if GPU else (8, 3, 3)  # updates
TINY = {} if GPU else {"embed_dim": 32, "depth": 1}
DEMO = replace(digits_vit, model=replace(digits_vit.model, **TINY))
SHORT = replace(  # samples skipped in groups of four; no kernel has all of 257 tokens in one block
    digits_vit,
    model=replace(
        digits_vit.model,
        drop_path=StochasticDepth(rate=0.3, group=4),
        **(dict(embed_dim=128) if GPU else dict(embed_dim=32, depth=2)),
    ),
    data=replace(digits_vit.data, image_size=32 if GPU else 8),
    schedule=replace(digits_vit.schedule, epochs=1, warmup_epochs=0),
    precision="bf16",
    ema=0.9,
)
LAMB = replace(SHORT, optim=Lamb(lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1))


def options(ranks: Ranks, stage: int, **more: object) -> dict[str, Any]:
    """Two micro-batches an update, whatever the number of ranks."""
    micro_batch = SHORT.batch_size // ranks.world // 2
    kept = {"stop_after": LENGTH, "micro_batch": micro_batch, "log_every": LENGTH}
    return {"sharding": f"zero{stage}", **kept, **more}


def demo(ranks: Ranks, folder: Path) -> None:
    """`digits_vit` to its end, with an evaluation."""
    schedule = replace(digits_vit.schedule, epochs=EPOCHS, warmup_epochs=min(1, EPOCHS - 1))
    for precision in ("bf16",) if ranks.device.type == "cpu" else ("bf16", "fp16"):
        recipe = replace(DEMO, schedule=schedule, precision=precision)
        for stage in STAGES:
            more = {"evaluate_every": EPOCHS, "stop_after": None, "micro_batch": None}
            train(
                ranks, folder / f"demo_{stage}_{precision}", recipe, **options(ranks, stage, **more)
            )


def first_part(ranks: Ranks, folder: Path) -> None:
    """Runs without a stop, and the same ones stopped."""
    for stage in STAGES:
        train(ranks, folder / f"whole_{stage}", SHORT, **options(ranks, stage))
        train(ranks, folder / f"parts_{stage}", SHORT, **options(ranks, stage, stop_after=STOP))
    train(ranks, folder / "whole_lamb", LAMB, **options(ranks, 2))
    train(ranks, folder / "parts_lamb", LAMB, **options(ranks, 2, stop_after=STOP))


def second_part(ranks: Ranks, folder: Path) -> None:
    """The stopped runs go on, in new processes."""
    for stage in STAGES:
        train(ranks, folder / f"parts_{stage}", SHORT, **options(ranks, stage, resume="auto"))
    train(ranks, folder / "parts_lamb", LAMB, **options(ranks, 2, resume="auto"))


def any_order(ranks: Ranks, folder: Path) -> None:
    """The same run twice, by kernels that may sum in any order."""
    for name in ("once", "twice"):
        train(ranks, folder / name, SHORT, **options(ranks, 2))


def under_way(ranks: Ranks, folder: Path) -> None:
    """Checkpoints written while training goes on, and while it waits."""
    for name, background in (("beside", True), ("waited", False)):
        more = {"checkpoint_every": EVERY, "keep": 9, "background_save": background}
        train(ranks, folder / name, LAMB, **options(ranks, 3, **more))


def waits(ranks: Ranks, folder: Path) -> None:
    """Where the host waits for the device, in updates that log nothing."""
    found: dict[str, dict[str, int]] = {}
    for stage in STAGES:
        engine, batches, prepare = started(ranks, SHORT, stage)
        for _ in range(3):  # buffers are made, and DeepSpeed's timers wake up
            engine.update(prepare.later(next(batches)), Rates(1e-3))
        seen: Counter[str] = Counter()
        micro = next(batches)
        with waiting(seen):
            engine.update(prepare.later(micro), Rates(1e-3))
        found[str(stage)] = dict(seen)
    say(ranks, folder / "waits.json", found)


def compiled(ranks: Ranks, folder: Path) -> None:
    """How far losses and gradients' norms of compiled blocks are from eager ones, in float32."""
    found: list[list[float]] = []
    for compile in (False, True):
        engine, batches, prepare = started(ranks, replace(SHORT, precision="fp32"), 2, compile)
        steps = [engine.update(prepare.later(next(batches)), Rates(1e-3)) for _ in range(3)]
        found.append([float(n) for step in steps for n in (*step.losses.values(), step.norm)])
    say(ranks, folder / "compiled.json", max(abs(a / b - 1) for a, b in zip(*found, strict=True)))


def started(
    ranks: Ranks, recipe: Recipe, stage: int, compile: bool = False
) -> tuple[Engine, Any, Prepare]:
    """An engine, this rank's batches, and what puts them on the device."""
    layout = Layout(ranks.world, recipe.batch_size // ranks.world // 2, 2)
    run = Run(sharding=f"zero{stage}", micro_batch=layout.micro_batch, compile=compile)
    engine = build_engine(recipe, run, layout, ranks)
    source = DigitsSource("train")
    batches = train_batches(source, recipe, layout, ranks.rank, 0, 0, engine.task.draws)
    return engine, batches, Prepare(recipe, ranks.device)


def say(ranks: Ranks, path: Path, found: object) -> None:
    if ranks.rank == 0:
        path.write_text(json.dumps(found))


SCENARIOS = (demo, first_part, second_part, any_order, under_way, waits, compiled)


def main(args: Sequence[str]) -> None:
    folder, *names = [arg for arg in args if not arg.startswith("--local_rank")]
    if FIXED.intersection(names):
        deterministic.fix_kernels()
    ranks = connect(meet_ranks(Run(timeout=60)), 60)
    scenarios = {each.__name__: each for each in SCENARIOS}
    for name in names:
        scenarios[name](ranks, Path(folder))
    ranks.agree(0)
    end(0)


if __name__ == "__main__":
    main(sys.argv[1:])
