"""`--profile`, a trace of three updates which changes none of them; and what a run says of itself
beside a plan, where its device was measured."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from reference import train_single

from bigvit.plan.calibration import HERE, write_calibration
from bigvit.plan.devices import Device
from bigvit.ranks.joining import alone
from bigvit.recipe import Command, Run
from bigvit.training.check import check
from bigvit.training.loop import run
from bigvit.training.run_folder import RunFolder
from bigvit.training.start import plan_start


@pytest.mark.parametrize("first", [2, tiny.UPDATES])
def test_updates_are_traced_and_stay_what_they_are(
    first: int, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    device = Device(2**34, 1e10, {"fp32": 1e11}, 1e9, "made up", products=0.5)
    write_calibration(HERE, device, None)
    folder, layout = tmp_path / "run", tiny.cut(tiny.adamw, 1)
    more = Run(run_dir=folder, engine="single", workers=0, log_every=1)
    options = replace(more, profile=first, stop_after=tiny.UPDATES)
    command = Command("tiny", tiny.adamw, options, ())
    opened = RunFolder(folder, command, 1)
    run(command, layout, plan_start(command), alone(), opened, lambda: False)
    opened.close()
    trace = folder / "profile" / f"update_{first}.json.gz"
    said = capsys.readouterr().out
    assert str(trace) in said
    with gzip.open(trace) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("dur")]
    backward = [event for event in events if "LayerNormBackward" in event["name"]]
    norms = 2 * tiny.adamw.model.depth + 1
    updates = min(3, tiny.UPDATES - first + 1)
    named = [event for event in backward if event["name"].startswith("autograd::engine")]
    assert len(named) == updates * layout.accumulation * norms
    lines = list(map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()))
    updates = [line for line in lines if line["kind"] == "update"]
    assert [line["loss"] for line in updates] == train_single(tiny.adamw)[1]
    # three passes of two FLOPs a multiply-accumulate, at 1e11 a second; 0.3 of them are skipped
    flops = 6 * tiny.adamw.model.macs(tiny.adamw.data.image_size)
    for line in updates:
        assert line["dense_flops_use"] == pytest.approx(line["images_per_second"] * flops / 1e11)
        assert 0.7 <= line["flops_use"] / line["dense_flops_use"] <= 0.72
    (planned,) = (line for line in lines if line["kind"] == "planned")
    assert planned["batch"] == 10 and planned["measured"]["memory"] is None
    took, expected = planned["measured"]["seconds"], planned["planned"]["seconds"]
    assert (
        f"the first 10 updates: an update {1e3 * took:.4g} ms, planned {1e3 * expected:.4g}" in said
    )


def test_a_trace_of_no_update_is_refused() -> None:
    recipe = tiny.adamw
    command = Command("tiny", recipe, Run(engine="single", profile=recipe.updates + 1), ())
    with pytest.raises(ValueError, match=rf"--profile .*{recipe.updates} updates; name one"):
        check(command, 1)
