"""What a rank does to show equal initial weights, what stops a run, and what is told of weights."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lamb
import tiny
import torch
from launched import Way, changed_losses, options, train, whole
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from bigvit.checkpoint.save import Saver
from bigvit.data.loader import train_batches
from bigvit.data.prepare import Normalise, Prepare
from bigvit.data.sources import DigitsSource
from bigvit.engines import build
from bigvit.engines.build import build_engine
from bigvit.engines.ema import averaged
from bigvit.engines.engine import NotFinite
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Command, Rates, Recipe, Run
from bigvit.recipe.store import to_json
from bigvit.task import DTYPES, Task
from bigvit.training.given import given_weights as weights_of_init
from bigvit.training.loss_guard import LossGuard, LossJumped

Ways = Sequence[Way]
STAGES = (0, 1, 2, 3)
PRECISIONS = ("fp32", "bf16")
NORMED = ("stage 0", "stage 1", "stage 2", "stage 3", "stage 2, offloaded", "stage 3, offloaded")
NORMED_UPDATES = 3
BAD = 11  # number of the global batch that stops a run: ten losses are known before it
# wide enough that one layer is a small part of it
wide = replace(tiny.adamw, model=replace(tiny.adamw.model, embed_dim=192, depth=4))
# with frozen weights, which have no average
average = replace(tiny.attention, precision="bf16", ema=0.5, batch_size=48)
ARGS = ("digits_vit", "--model.embed-dim", "16", "--model.depth", "1", "--model.num-heads", "2")
OPTIONS = ("--workers", "0", "--log-every", "1", "--checkpoint-every", "1", "--micro-batch", "16")


def digests(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """sha256 of every weight's float32 bytes."""
    assert all(weight.dtype == torch.float32 for weight in weights.values())
    return {
        name: hashlib.sha256(weight.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
        for name, weight in weights.items()
    }


def initial_weights(ranks: Ranks, folder: Path, ways: Ways = STAGES) -> None:
    """Digests of the initial weights at every stage, in float32 and bf16; and what is computed
    with at first, which in bf16 is those rounded."""
    found: dict[str, Any] = {}
    for precision in PRECISIONS:
        recipe = replace(tiny.lamb, precision=precision)
        for way in ways:
            layout = tiny.cut(recipe, ranks.world)
            engine = build_engine(recipe, Run(**options(way)), layout, ranks)
            found[f"{precision} {way}"] = digests(whole(engine, ranks))
            found[f"working {precision} {way}"] = _working(engine.task)
    _write(ranks, folder / f"initial_weights_{ranks.world}.json", found)


def _working(task: Task) -> dict[str, str]:
    """Digests of the weights that are computed with, gathered where they lie in pieces."""
    import deepspeed

    dtype, parameters = DTYPES[task.recipe.precision], list(task.parameters())
    with deepspeed.zero.GatheredParameters(parameters, enabled=hasattr(parameters[0], "ds_id")):
        gathered = {
            name: p.full_tensor().to(dtype) if isinstance(p, DTensor) else p
            for name, p in task.named_parameters()
        }
        return digests({name: p.detach().float() for name, p in gathered.items()})


def given_weights(ranks: Ranks, folder: Path, ways: Ways = STAGES) -> None:
    """Weights given by --init, at every stage in bf16: they are not multiples of its steps."""
    source = build_engine(
        replace(tiny.lamb, seed=7), Run(sharding="zero1"), tiny.cut(tiny.lamb, ranks.world), ranks
    )
    saver = Saver(
        source, folder / "given" / "checkpoints", to_json(tiny.lamb), keep=1, background=False
    )
    checkpoint = saver.save(1)
    found: dict[str, Any] = {"given": digests(whole(source, ranks))}
    recipe = replace(tiny.lamb, precision="bf16", starts_from="another")
    for way in ways:
        command = Command("given", recipe, Run(init=str(checkpoint), **options(way)), ())
        layout = tiny.cut(recipe, ranks.world)
        engine = build_engine(
            recipe, command.run, layout, ranks, weights_of_init(command, ranks, print)
        )
        found[str(way)] = digests(whole(engine, ranks))
    _write(ranks, folder / "given_weights.json", found)


def held(ranks: Ranks, folder: Path) -> None:
    """Elements of whole parameters that a rank holds while the model is built: the most at any
    time, and those at the end. Stage 2 shows that they are counted."""
    found: dict[str, Any] = {}
    for stage in (2, 3):
        parameters: list[nn.Parameter] = []
        seen = {"most": 0, "end": 0, "pieces": 0, "all": 0}

        def alive(parameters: list[nn.Parameter] = parameters) -> int:
            distinct = {id(p): p for p in parameters}
            return sum(p.data.numel() for p in distinct.values())

        def registered(_module: object, _name: str, p: nn.Parameter) -> None:
            parameters.append(p)  # noqa: B023
            seen["most"] = max(seen["most"], alive())  # noqa: B023

        def built(recipe: Recipe) -> Task:
            if torch.get_default_device().type == "meta":
                return Task(recipe)
            hook = nn.modules.module.register_module_parameter_registration_hook(registered)  # noqa: B023
            task = Task(recipe)
            hook.remove()
            seen["end"] = alive()  # noqa: B023
            for p in task.parameters():
                seen["pieces"] += getattr(p, "ds_tensor", p).numel()  # noqa: B023
                seen["all"] += getattr(p, "ds_numel", p.numel())  # noqa: B023
            return task

        build.Task = built
        try:
            layout = tiny.cut(wide, ranks.world)
            build_engine(wide, Run(sharding=f"zero{stage}"), layout, ranks)
        finally:
            build.Task = Task
        each = torch.zeros(ranks.world, len(seen), dtype=torch.int64)
        each[ranks.rank] = torch.tensor(list(seen.values()))
        found[str(stage)] = [dict(zip(seen, row, strict=True)) for row in ranks.sum(each).tolist()]
    _write(ranks, folder / "held.json", found)


def jumped(ranks: Ranks, folder: Path, ways: Ways = STAGES) -> None:
    """A loss that jumps on the last rank alone, and one that is infinite there while its gradient
    is not: every rank stops, and no weight, moment or average has changed."""
    found: dict[str, Any] = {}
    for precision in PRECISIONS:
        recipe = replace(tiny.lamb, precision=precision)
        recipe = replace(recipe, model=replace(recipe.model, depth=1))
        for way in ways:
            for what, change in (("jump", twenty_times), ("infinite", infinite)):
                layout = tiny.cut(recipe, ranks.world)
                engine = build_engine(recipe, Run(**options(way)), layout, ranks)
                draws, prepare = engine.task.draws, Prepare(recipe, ranks.device)
                source = DigitsSource("train")
                batches = train_batches(source, recipe, layout, ranks.rank, 0, 0, draws)
                guard = LossGuard(3.0)
                info = engine.update(prepare.later(next(batches)), Rates(1e-3), guard)
                for _ in range(9):
                    guard(info.loss)
                before = [part.view.clone() for part in engine.slices()]
                working = _working(engine.task)
                outcome = "went on"
                with changed_losses({1}, ranks, change):
                    try:
                        looks = guard if what == "jump" else None
                        engine.update(prepare.later(next(batches)), Rates(1e-3), looks)
                    except (NotFinite, LossJumped) as error:
                        outcome = f"{type(error).__name__}: {error}"
                after = [part.view for part in engine.slices()]
                same = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
                same = same and working == _working(engine.task)
                said = ranks.sum(torch.tensor(int(outcome != "went on"))).item()
                unchanged = not ranks.agree(not same)
                found[f"{what} {precision} {way}"] = [outcome, said == ranks.world, unchanged]
    _write(ranks, folder / "jumped.json", found)


def norms(ranks: Ranks, folder: Path) -> None:
    """Short runs whose norms by block are logged."""
    for name in NORMED:
        layout = tiny.cut(tiny.lamb, ranks.world)
        path, sharding = folder / f"norms {name}", lamb.sharding(ranks, folder, name)
        more = {"log_norms": True, "stop_after": NORMED_UPDATES, "sharding": sharding}
        train(ranks, path, tiny.lamb, micro_batch=layout.micro_batch, **more)


def averages(ranks: Ranks, folder: Path, ways: Ways = STAGES) -> None:
    """The average in the place of the weights, and the weights after it."""
    found: dict[str, Any] = {}
    for way in ways:
        layout = tiny.cut(average, ranks.world)
        engine = build_engine(average, Run(**options(way)), layout, ranks)
        draws, prepare = engine.task.draws, Prepare(average, ranks.device)
        batches = train_batches(DigitsSource("train"), average, layout, ranks.rank, 0, 0, draws)
        for _ in range(2):
            engine.update(prepare.later(next(batches)), Rates(1e-2))
        before = [part.view.clone() for part in engine.slices()]
        last, scalars, (batch, *_) = _working(engine.task), engine.scalars(), next(batches)
        images = Normalise(average.data, ranks.device)(batch.images)
        logits = engine.predict(images)
        frozen = {name for name, p in engine.task.named_parameters() if not p.requires_grad}
        mean = whole(engine, ranks, "ema")
        weights = whole(engine, ranks)
        mean = {name: weights[name] if name in frozen else mean[name] for name in weights}
        with averaged(engine):
            inside = _working(engine.task)
            other = engine.predict(images)
        after = [part.view for part in engine.slices()]
        checks = {
            "inside it is the average": inside
            == digests({name: w.bfloat16().float() for name, w in mean.items()}),
            "which is another one": inside != last and not torch.equal(logits, other),
            "masters and moments are back": all(map(torch.equal, before, after)),
            "working weights are back": last == _working(engine.task),
            "so are logits": torch.equal(logits, engine.predict(images)),
            "so are scalars": scalars == engine.scalars(),
        }
        wrong = ranks.sum(torch.tensor([not right for right in checks.values()]).int())
        found[str(way)] = dict(zip(checks, wrong.tolist(), strict=True))
    _write(ranks, folder / "averages.json", found)


def twenty_times(loss: Tensor) -> Tensor:
    return loss * 20


def infinite(loss: Tensor) -> Tensor:
    return loss + float("inf")  # its gradient stays what it was


def _write(ranks: Ranks, path: Path, found: object) -> None:
    if ranks.rank == 0:
        path.write_text(json.dumps(found))


SCENARIOS = (
    initial_weights,
    given_weights,
    held,
    jumped,
    norms,
    averages,
)
