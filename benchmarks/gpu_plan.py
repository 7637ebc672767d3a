"""Row 9 of docs/performance.md on a GPU: what `bigvit plan` says of memory and time, over what is
measured. A part of benchmarks/gpu.py.
"""

from dataclasses import dataclass, replace

import torch

from benchmarks.engine import batch
from benchmarks.gpu_scale import Scale, engine, pending, seconds, undropped
from benchmarks.measure import Row
from bigvit.plan.calibration import measured
from bigvit.plan.choose import Choice, Machines
from bigvit.plan.devices import Device, find_device, known_as
from bigvit.recipe import Layout, Rates, Recipe, Run

LOW, HIGH, APART = 0.97, 1.08, 0.10  # of memory planned over measured; of time


@dataclass(frozen=True)
class Case:
    """A configuration."""

    what: str
    recipe: Recipe
    batch: int
    recomputed: float
    compiled: bool


def device_here(s: Scale) -> Device | None:
    """This GPU in the planner's table, with what was measured of it."""
    if s.device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(s.device)
    name = known_as(properties.name, properties.total_memory)
    if name is None:
        return None
    kept = measured(name)
    return find_device(name) if kept is None else kept[0]


def planned(s: Scale) -> list[Row]:
    """Six configurations of one process."""
    few, many = s.batches
    here = device_here(s)
    rows: list[Row] = []
    for case in (
        Case("H, 0.5 skipped", s.h, few, 0.0, False),
        Case("H, 0.5 skipped", s.h, many, 0.0, False),
        Case("H, nothing dropped", undropped(s.h), few, 0.0, False),
        Case("H, every block recomputed", undropped(s.h), many, 1.0, False),
        Case("H, 0.5 skipped, compiled", s.h, many, 0.0, True),
        Case("H-52, 0.5 skipped", s.h52, few, 0.0, False),
    ):
        if s.late:
            break
        rows += _case(s, case, here or find_device("h100-80gb"), here is not None)
    return rows


def _case(s: Scale, case: Case, device: Device, known: bool) -> list[Row]:
    recipe = replace(case.recipe, batch_size=case.batch)
    run = Run(engine="single", checkpoint_activations=case.recomputed, compile=case.compiled)
    layout = Layout(1, case.batch, 1)
    choice = Choice(recipe, run, layout, Machines(device, 1, 1, 1e9))
    cuda = s.device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    ours = engine(s, recipe, case.recomputed, case.compiled)
    one = pending(s, ours.task, batch(ours.task, case.batch, s.device))
    took = seconds(s, {"ours": lambda: ours.update([one], Rates(1e-3))})["ours"]
    what = f"row 9: {case.what}, batch {case.batch}"
    time_ = choice.clock.update / took
    ok = abs(time_ - 1) <= APART if known else None
    rows = [
        Row(f"{what}: time planned over measured", f"{time_:.2f}", f"{took:.3f} s", "0.9-1.1", ok)
    ]
    if cuda and not case.compiled:  # compiled blocks keep less than is planned
        held = torch.cuda.max_memory_reserved()
        share = (choice.peak - choice.context) / held
        rows.append(
            Row(
                f"{what}: memory planned over measured",
                f"{share:.2f}",
                f"{held / 1e9:.1f} GB",
                f"{LOW}-{HIGH}",
                LOW <= share <= HIGH,
            )
        )
    return rows
