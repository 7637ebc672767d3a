"""What one rank does, started by the real launcher: several runs in the same processes.

    deepspeed --num_accelerators 2 tests/engines/ranks.py FOLDER SCENARIO...

Each scenario leaves a run folder, or a JSON, in FOLDER; the tests read those.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import cait  # noqa: E402
import chain  # noqa: E402
import detected  # noqa: E402
import followed  # noqa: E402
import grafit_dino  # noqa: E402
import guards  # noqa: E402
import labelled  # noqa: E402
import lamb  # noqa: E402
import localization  # noqa: E402
import muon  # noqa: E402
import others  # noqa: E402
import pooling  # noqa: E402
import precision  # noqa: E402
import resmlp  # noqa: E402
import rolled  # noqa: E402
import segmented  # noqa: E402
import sgd  # noqa: E402
import taught  # noqa: E402
import timm_models  # noqa: E402
import tiny  # noqa: E402
import torch  # noqa: E402
import traps  # noqa: E402
from launched import InfiniteGradient, one_at_a_time, options, train  # noqa: E402
from launched import whole as whole_of  # noqa: E402

from bigvit.data.sources import DigitsSource  # noqa: E402
from bigvit.engines.build import build_engine, meet_ranks, outline  # noqa: E402
from bigvit.engines.engine import NotFinite  # noqa: E402
from bigvit.evaluate import evaluate  # noqa: E402
from bigvit.ranks.joining import Ranks, connect, end  # noqa: E402
from bigvit.recipe import Rates, Run, batch_layout  # noqa: E402

STAGES = (0, 1, 2, 3)


def whole(ranks: Ranks, folder: Path) -> None:
    """Runs without a stop, at every stage."""
    for stage in STAGES:
        train(ranks, folder / f"whole_{stage}", tiny.adamw, sharding=f"zero{stage}")


def frozen(ranks: Ranks, folder: Path) -> None:
    """Attention alone is trained, with a learning rate that falls with depth; and resumed."""
    for stage in STAGES:
        path, sharding = folder / f"frozen_{stage}", f"zero{stage}"
        train(ranks, path, tiny.attention, sharding=sharding, stop_after=tiny.STOP)
        train(ranks, path, tiny.attention, sharding=sharding, resume="auto")


def first_half(ranks: Ranks, folder: Path) -> None:
    """The same runs, stopped in mid-epoch."""
    for stage in STAGES:
        path = folder / f"halves_{stage}"
        train(ranks, path, tiny.adamw, sharding=f"zero{stage}", stop_after=tiny.STOP)


def second_half(ranks: Ranks, folder: Path) -> None:
    """The stopped runs resumed; with data workers at one stage."""
    for stage in STAGES:
        path, workers = folder / f"halves_{stage}", (0, 1, 0, 0)[stage]
        train(ranks, path, tiny.adamw, sharding=f"zero{stage}", resume="auto", workers=workers)


def half_precision(ranks: Ranks, folder: Path) -> None:
    """bf16 at every stage, without accumulation: stages 1 and 2 round it differently."""
    for stage in STAGES:
        options = {"sharding": f"zero{stage}", "micro_batch": tiny.bf16.batch_size // ranks.world}
        train(ranks, folder / f"bf16_{stage}", tiny.bf16, **options)


def half_precision_halves(ranks: Ranks, folder: Path) -> None:
    """bf16 stopped and resumed at every stage, in new engines."""
    for stage in STAGES:
        path = folder / f"bf16_halves_{stage}"
        options = {"sharding": f"zero{stage}", "micro_batch": tiny.bf16.batch_size // ranks.world}
        train(ranks, path, tiny.bf16, stop_after=tiny.STOP, **options)
        train(ranks, path, tiny.bf16, resume="auto", **options)


def accumulated(ranks: Ranks, folder: Path) -> None:
    """The gradient of many bf16 micro-batches, summed in float32 and in bf16, at every stage: as
    the first moment shows it."""
    from bigvit.data.loader import train_batches
    from bigvit.data.prepare import Prepare

    for stage in STAGES:
        for gradient in ("fp32", "bf16"):
            recipe = replace(tiny.many, gradient_precision=gradient)
            layout = batch_layout(recipe, ranks.world, tiny.SMALLEST)
            engine = build_engine(recipe, Run(sharding=f"zero{stage}"), layout, ranks)
            source, draws = DigitsSource("train"), engine.task.draws
            batches = train_batches(source, recipe, layout, ranks.rank, 0, 0, draws)
            engine.update(Prepare(recipe, ranks.device).later(next(batches)), Rates(0.0))
            moments = whole_of(engine, ranks, "exp_avg")
            if ranks.rank == 0:
                torch.save(moments, folder / f"accumulated {gradient} {stage}")


def other_world(ranks: Ranks, folder: Path) -> None:
    """A run stopped at another number of ranks and another stage goes on here."""
    path = folder / "halves_elsewhere"
    train(ranks, path, tiny.adamw, sharding="zero3", resume="auto")


def counts(ranks: Ranks, folder: Path, ways: guards.Ways = (0, 3)) -> None:
    """Evaluation of 103 images, where weights are whole, and sharded."""
    found = {}
    for way in ways:
        layout = tiny.cut(tiny.adamw, ranks.world)
        engine = build_engine(tiny.adamw, Run(**options(way)), layout, ranks)
        source = DigitsSource("test")
        source.images, source.targets = source.images[:103], source.targets[:103]
        found[str(way)] = evaluate(engine.predict, source, tiny.adamw.data, 10, ranks).as_json()
    if ranks.rank == 0:
        (folder / f"counts_{ranks.world}.json").write_text(json.dumps(found))


def planned(ranks: Ranks, folder: Path) -> None:
    """Bytes that engines hold while the optimizer steps, and what was predicted."""
    sys.path.insert(0, str(Path(__file__).parents[2]))  # fairscale installs benchmarks of its own
    from benchmarks.plan import Memory
    from bigvit.data.loader import train_batches
    from bigvit.data.prepare import Prepare
    from bigvit.plan.states import states

    found = {}
    for way in (3, "fsdp2 full"):  # `benchmarks/plan.py` has all
        run, layout = Run(**options(way)), tiny.cut(tiny.lamb, ranks.world)
        source, task = DigitsSource("train"), outline(tiny.lamb)
        batches = train_batches(source, tiny.lamb, layout, ranks.rank, 0, 0, task.draws)
        batch, memory, seen = next(batches), Memory(), list[int]()
        engine: Any = build_engine(tiny.lamb, run, layout, ranks)
        masters = getattr(engine, "masters", None)
        optimizer = masters.optimizer if masters else engine.inside.optimizer
        optimizer.register_step_pre_hook(lambda *_, m=memory, s=seen: s.append(m.held()))
        engine.update(Prepare(tiny.lamb, ranks.device).later(batch), Rates(1e-3))
        said = states(tiny.lamb, layout, run, ranks.world)
        found[str(way)] = max(seen), said.kept + said.stepping
    if ranks.rank == 0:  # no other has more
        (folder / "planned.json").write_text(json.dumps(found))


def agree_on_error(ranks: Ranks, folder: Path) -> None:
    """An error that the last rank alone meets, and one that all do."""
    found = []
    for meets in ((ranks.world - 1,), range(ranks.world), ()):
        said = "went on"
        try:
            with ranks.agree_on_error(OSError, raised=ValueError):
                if ranks.rank in meets:
                    raise OSError(f"met by {ranks.rank}")
        except ValueError as error:
            said = str(error)
        found.append(ranks.texts(said))
    if ranks.rank == 0:
        (folder / "agree_on_error.json").write_text(json.dumps(found))


def not_finite(ranks: Ranks, folder: Path, ways: guards.Ways = STAGES) -> None:
    """An infinite gradient on the last rank alone: every rank stops, no weight has changed."""
    from bigvit.data.loader import train_batches
    from bigvit.data.prepare import Prepare

    found: dict[str, object] = {}
    for recipe in (tiny.adamw, tiny.bf16):
        for way in ways:
            layout = tiny.cut(recipe, ranks.world)
            engine = build_engine(recipe, Run(**options(way)), layout, ranks)
            source = DigitsSource("train")
            batches = train_batches(source, recipe, layout, ranks.rank, 0, 0, engine.task.draws)
            prepare = Prepare(recipe, ranks.device)
            engine.update(one_at_a_time(prepare.later(next(batches))), Rates(1e-3))
            before = [part.view.clone() for part in engine.slices()]
            hook = None
            if ranks.rank == ranks.world - 1:
                block: Any = engine.task.model.blocks[1]
                hook = block.ls1.register_forward_hook(_blow_up)
            try:
                engine.update(prepare.later(next(batches)), Rates(1e-3))
                outcome = "went on"
            except NotFinite as error:
                outcome = str(error)
            after = [part.view for part in engine.slices()]
            same = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
            unchanged = not ranks.agree(not same)
            found[f"{recipe.precision} {way}"] = [outcome, unchanged]
            if hook is not None:
                hook.remove()
    if ranks.rank == 0:
        (folder / "not_finite.json").write_text(json.dumps(found))


def _blow_up(_module: object, _inputs: object, output: torch.Tensor) -> torch.Tensor:
    """The same output, with an infinite gradient."""
    return InfiniteGradient.apply(output)  # pyright: ignore[reportReturnType]


def others_ranks(ranks: Ranks, folder: Path) -> None:
    """What DeepSpeed's stages show above."""
    counts(ranks, folder, others.EACH)
    not_finite(ranks, folder, others.WAYS)


SCENARIOS = {
    f.__name__: f
    for f in (
        whole,
        frozen,
        first_half,
        second_half,
        half_precision,
        half_precision_halves,
        accumulated,
        other_world,
        counts,
        planned,
        agree_on_error,
        not_finite,
    )
} | {
    f.__name__: f
    for f in (
        *cait.SCENARIOS,
        *chain.SCENARIOS,
        *followed.SCENARIOS,
        *grafit_dino.SCENARIOS,
        *guards.SCENARIOS,
        *lamb.SCENARIOS,
        *localization.SCENARIOS,
        *muon.SCENARIOS,
        *others.SCENARIOS,
        others_ranks,
        *pooling.SCENARIOS,
        *precision.SCENARIOS,
        *resmlp.SCENARIOS,
        *rolled.SCENARIOS,
        *segmented.SCENARIOS,
        *sgd.SCENARIOS,
        *taught.SCENARIOS,
        *labelled.SCENARIOS,
        *detected.SCENARIOS,
        *timm_models.SCENARIOS,
        *traps.SCENARIOS,
    )
}


def main(args: Sequence[str]) -> None:
    folder, *names = [arg for arg in args if not arg.startswith("--local_rank")]
    ranks = connect(meet_ranks(Run(timeout=180)), 180)
    for name in names:
        SCENARIOS[name](ranks, Path(folder))
    ranks.agree(0)
    end(0)


if __name__ == "__main__":
    main(sys.argv[1:])
