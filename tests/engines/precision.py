"""What a rank does to show fp16 with dynamic loss scaling. DeepSpeed refuses fp16 on a CPU: that
refusal is lifted here, and only here."""

import json
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny
import torch
from deepspeed.accelerator import get_accelerator
from launched import InfiniteGradient, Way, changed_losses, options, train

from bigvit.data.loader import train_batches
from bigvit.data.prepare import Prepare
from bigvit.data.sources import DigitsSource
from bigvit.engines.build import build_engine
from bigvit.engines.engine import NotFinite
from bigvit.ranks.joining import Ranks
from bigvit.recipe import CrossEntropy, Rates, Recipe, Run

STAGES = (0, 1, 2, 3)
RESUMED = (0, 3)
OVERFLOWS = 2  # number of the global batch whose gradient overflows
# small, as fp16 is slow on a CPU; with a gradient that does not overflow by itself
recipe = replace(
    tiny.fp16,
    model=replace(tiny.fp16.model, depth=1),
    objectives=(CrossEntropy(weight=0.2, smoothing=0.1, class_weights=None),),
    optim=tiny.lamb.optim,
    ema=0.9,
    batch_size=48,
    schedule=replace(tiny.fp16.schedule, epochs=1),
)


def fp16(
    ranks: Ranks,
    folder: Path,
    ways: Sequence[Way] = STAGES,
    resumed: Sequence[Way] = RESUMED,
    recipe: Recipe = recipe,
    called: str = "fp16",
) -> None:
    """fp16 at every stage; at some stopped and resumed, with an overflow before the stop."""
    with allowed(), overflowing({OVERFLOWS}, ranks):
        for way in ways:
            more = {"micro_batch": recipe.batch_size // ranks.world, **options(way)}
            train(ranks, folder / f"{called}_{way}", recipe, **more)
            if way in resumed:
                path = folder / f"{called}_halves_{way}"
                train(ranks, path, recipe, stop_after=tiny.STOP, **more)
                train(ranks, path, recipe, resume="auto", **more)


def fp16_not_a_number(ranks: Ranks, folder: Path) -> None:
    """A gradient that stays infinite: skipped until the scale is at its end, then all stop."""
    found: dict[str, Any] = {}
    with allowed(), overflowing(set(range(100)), ranks):
        for stage in STAGES:
            layout = tiny.cut(recipe, ranks.world)
            engine = build_engine(recipe, Run(sharding=f"zero{stage}"), layout, ranks)
            source = DigitsSource("train")
            batches = train_batches(source, recipe, layout, ranks.rank, 0, 0, engine.task.draws)
            prepare = Prepare(recipe, ranks.device)
            before = [part.view.clone() for part in engine.slices()]
            skipped, outcome = 0, "went on"
            try:
                for _ in range(40):
                    micro = prepare.later(next(batches))
                    skipped += not engine.update(micro, Rates(1e-3)).applied
            except NotFinite as error:
                outcome = str(error)
            after = [part.view for part in engine.slices()]
            same = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
            found[str(stage)] = [outcome, skipped, not ranks.agree(not same)]
    if ranks.rank == 0:
        (folder / "fp16_not_a_number.json").write_text(json.dumps(found))


@contextmanager
def allowed() -> Generator[None]:
    accelerator: Any = get_accelerator()
    refusing = accelerator.is_fp16_supported
    accelerator.is_fp16_supported = lambda: True
    try:
        yield
    finally:
        accelerator.is_fp16_supported = refusing


def overflowing(numbers: set[int], ranks: Ranks) -> AbstractContextManager[None]:
    """The last rank's gradient of these global batches is infinite; its loss is not."""
    return changed_losses(numbers, ranks, lambda loss: InfiniteGradient.apply(loss))  # pyright: ignore


SCENARIOS = (fp16, fp16_not_a_number)
