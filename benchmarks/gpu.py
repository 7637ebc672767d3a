"""What needs a GPU, in at most four minutes: rows 1, 3 to 6, 8, 9 and 11 of docs/performance.md.

    python -m benchmarks.gpu [--small] [--check] [--seconds 240] [--rows FILE]

Without one, or with --small, tiny models run through the same code, and figures but for counts mean
nothing: they have no goal. What needs DeepSpeed comes last, and is left out where it is not
installed. FILE gets each row when it is there, as a line of JSON. Shapes: B images.
"""

import importlib.util
import json
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timm.optim.lamb import Lamb as TimmLamb
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn

from benchmarks.engine import batch
from benchmarks.feed import fed
from benchmarks.gpu_plan import device_here, planned
from benchmarks.gpu_scale import Scale, engine, pending, scale, seconds, undropped
from benchmarks.measure import Row, arguments, report
from benchmarks.optimizer import groups, lamb
from benchmarks.reads import waiting
from benchmarks.stochastic_depth import timms
from bigvit.engines.engine import Engine, Pending
from bigvit.models import ClassTokenTransformer
from bigvit.recipe import Layout, Rates, Recipe, Run
from bigvit.task import Task

SECONDS = 240.0
EXACT = ("0", "to run")  # goals that do not depend on the machine


def peer(s: Scale, recipe: Recipe) -> tuple[nn.Module, Callable[[Tensor, Tensor], None]]:
    """A plain loop of timm's parts: DropPath, LAMB, average, one read a step, blocks compiled."""
    plain: Any = Task(recipe).model
    assert isinstance(plain, ClassTokenTransformer)
    model = timms(plain, s.image).to(s.device)
    if s.device.type == "cuda":
        for block in model.blocks.children():
            block.compile()
    optimizer = TimmLamb(groups(model), lr=1e-3, max_grad_norm=None)
    average = ModelEmaV3(model, decay=0.9999)

    def step(images: Tensor, targets: Tensor) -> None:
        with torch.autocast(s.device.type, torch.bfloat16):
            logits = model(images.float() / 255)
        loss = F.binary_cross_entropy_with_logits(logits.float(), F.one_hot(targets, 1000).float())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average.update(model)
        loss.item()

    return model, step


def steps(s: Scale) -> list[Row]:
    """Rows 1 and 4: whole updates at the recipe's drop rate beside a loop of timm's parts."""
    ours = engine(s, s.h)
    _, theirs = peer(s, s.h)
    rows: list[Row] = []
    for count, goal in zip(s.batches, (1.6, 1.8), strict=True):
        if s.late:
            break
        made = batch(ours.task, count, s.device)
        one = pending(s, ours.task, made)
        whole = seconds(
            s,
            {
                "ours": lambda one=one: ours.update([one], Rates(1e-3)),
                "theirs": lambda made=made: theirs(made.images, made.targets),
            },
        )
        alone_ = seconds(s, {"dropped": lambda one=one: backward(ours.task, one)})["dropped"]
        bare = pending(s, ours.task, made._replace(draws=made.draws._replace(model=None)))
        full = seconds(s, {"full": lambda bare=bare: backward(ours.task, bare)})["full"]
        rate, times = count / whole["ours"], whole["theirs"] / whole["ours"]
        rows += [
            _row(f"row 1: nothing dropped over 0.5 skipped, batch {count}", full / alone_, goal),
            _row(f"row 4: images/s beside timm's parts, batch {count}", times, 2.3, f"{rate:.0f}"),
        ]
    return rows


def backward(task: Task, one: Pending) -> None:
    task.zero_grad(set_to_none=True)
    torch.stack(list(task(one()).values())).sum().backward()


def use(s: Scale) -> list[Row]:
    """Row 3: model FLOPs use, nothing dropped, LAMB and average in the step."""
    recipe, count = undropped(s.h), s.batches[1]
    ours = engine(s, recipe)
    one = pending(s, ours.task, batch(ours.task, count, s.device))
    took = seconds(s, {"ours": lambda: ours.update([one], Rates(1e-3))})["ours"]
    flops = 6 * recipe.model.macs(s.image) * count / took
    here, what = device_here(s), f"row 3: model FLOPs use, {count / took:.0f} images/s"
    if here is None:
        return [Row(f"{what}: this device's peak is not known", "")]
    share = flops / here.peaks[recipe.precision]
    return [Row(what, f"{share:.1%}", "", ">= 48%", share >= 0.48)]


def optimizers(s: Scale) -> list[Row]:
    """Row 6: LAMB and average beside fused AdamW and an average of the same weights."""
    plain = Task(s.h).model.to(s.device)
    for p in plain.parameters():
        p.grad = torch.randn_like(p) * 1e-3
    fused = s.device.type == "cuda"
    adamw = torch.optim.AdamW(groups(plain), lr=0.0, fused=True)
    average = ModelEmaV3(plain, decay=0.9999, foreach=True)

    def theirs() -> None:
        adamw.step()
        average.update(plain)

    took = seconds(s, {"ours": lamb(plain, fused, 0.9999).step, "theirs": theirs})
    ms = f"{1000 * took['ours']:.2f} ms, {1000 * took['theirs']:.2f} ms"
    return [
        _row("row 6: LAMB + average over AdamW + average", took["ours"] / took["theirs"], -1.5, ms)
    ]


def memory(s: Scale) -> list[Row]:
    """Row 8: bytes that a forward pass leaves for backward, and the time of recomputing."""
    rows: list[Row] = []
    took: dict[str, float] = {}
    for what, share, recipe in (
        ("0.5 skipped", 0.0, s.h),
        ("every block recomputed", 1.0, s.h),
    ):
        task = engine(s, recipe, share).task
        one = pending(s, task, batch(task, s.batches[0], s.device))
        backward(task, one)
        if s.device.type == "cuda":
            before = torch.cuda.memory_allocated()
            losses = task(one())
            kept = torch.cuda.memory_allocated() - before
            del losses
            model = recipe.model
            width, (h, w) = model.maps(s.image)[-1]
            units = kept / (2 * width * s.batches[0] * (h * w + 1) * model.depth)
            goal = -10.0 if share == 0 else None
            rows.append(_row(f"row 8: kept for backward, {what}, D (2 bytes)", units, goal))
        took[what] = seconds(s, {"run": lambda task=task, one=one: backward(task, one)})["run"]
    ratio = took["every block recomputed"] / took["0.5 skipped"]
    return [*rows, _row("row 8: time of recomputing every block", ratio, -1.34)]


def large(s: Scale) -> list[Row]:
    """H-52: one update."""
    ours = engine(s, s.h52)
    one = pending(s, ours.task, batch(ours.task, s.batches[0], s.device))
    took = seconds(s, {"ours": lambda: ours.update([one], Rates(1e-3))})["ours"]
    peak = torch.cuda.max_memory_allocated() / 1e9 if s.device.type == "cuda" else 0.0
    return [Row("H-52: images/s, peak GB", f"{s.batches[0] / took:.0f}, {peak:.1f}")]


def feed(s: Scale) -> list[Row]:
    """Row 11: what reaches the device from all cores, 16 at most."""
    return fed(s.h, s.device, s.small, s.deadline)


def reads(s: Scale) -> list[Row]:
    """Row 5: waits of the host for the device in an update that logs nothing, under ZeRO-1."""
    if importlib.util.find_spec("deepspeed") is None:
        return [Row("row 5: DeepSpeed is not installed", "left out")]
    from bigvit.engines.build import build_engine, meet_ranks
    from bigvit.ranks.joining import connect

    precision = "bf16" if s.device.type != "cpu" else "fp32"
    count = s.batches[0]
    recipe = replace(s.h, batch_size=count, precision=precision)
    ranks = connect(meet_ranks(Run(timeout=120)), 120)
    made: Engine = build_engine(recipe, Run(), Layout(1, count, 1), ranks)
    one = pending(s, made.task, batch(made.task, count, s.device))
    made.update([one], Rates(1e-3))
    found: Counter[str] = Counter()
    with waiting(found):
        made.update([one], Rates(1e-3))
    return [
        Row(
            "row 5: waits for the device, ours",
            str(found["ours"]),
            "",
            EXACT[0],
            found["ours"] == 0,
        ),
        Row("row 5: waits for the device, DeepSpeed's", str(found["DeepSpeed"])),
    ]


def _row(what: str, value: float, goal: float | None, beside: str = "") -> Row:
    """A ratio; a negative goal is an upper one."""
    if goal is None:
        return Row(what, f"{value:.2f}", beside)
    ok = value <= -goal if goal < 0 else value >= goal
    return Row(what, f"{value:.2f}", beside, f"{'<=' if goal < 0 else '>='} {abs(goal):g}", ok)


def main() -> int:
    options = arguments(__doc__ or "", seconds=SECONDS, rows="")
    s = scale(options.small, options.seconds)
    rows: list[Row] = []
    parts: Sequence[Callable[[Scale], list[Row]]] = (
        use,
        steps,
        optimizers,
        memory,
        feed,
        large,
        planned,
        reads,
    )
    failed = 0
    for part in parts:
        try:
            found = [Row(part.__name__, "no time left")] if s.late else part(s)
        except torch.OutOfMemoryError:
            found = [Row(part.__name__, "does not fit here")]
        except Exception:  # what the others measure is worth having
            traceback.print_exc()
            failed, found = 1, [Row(part.__name__, "failed", "", EXACT[1], False)]
        if s.small:
            found = [row if row.goal in EXACT else replace(row, goal="", ok=None) for row in found]
        rows += found
        if options.rows:
            with Path(options.rows).open("a") as file:
                file.writelines(json.dumps(asdict(row)) + "\n" for row in found)
        if s.device.type == "cuda":
            torch.cuda.empty_cache()
    return report(f"One update on {s.device}", rows, options.check) or failed


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")
    sys.exit(main())
