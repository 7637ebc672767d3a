"""`--profile`: a trace of three updates, which changes none of them."""

import gzip
import json
from pathlib import Path

import pytest
import tiny
from reference import train_single

from bigvit.ranks.joining import alone
from bigvit.recipe import Command, Run
from bigvit.train import check
from bigvit.training.loop import run
from bigvit.training.run_folder import RunFolder
from bigvit.training.start import plan_start


@pytest.mark.parametrize("first", [2, tiny.UPDATES])
def test_updates_are_traced_and_stay_what_they_are(first: int, tmp_path: Path, capsys) -> None:
    folder, layout = tmp_path / "run", tiny.cut(tiny.adamw, 1)
    options = Run(run_dir=folder, engine="single", workers=0, profile=first, log_every=1)
    command = Command("tiny", tiny.adamw, options, ())
    opened = RunFolder(folder, command, 1)
    run(command, layout, plan_start(command), alone(), opened, lambda: False)
    opened.close()
    trace = folder / "profile" / f"update_{first}.json.gz"
    assert str(trace) in capsys.readouterr().out
    with gzip.open(trace) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("dur")]
    backward = [event for event in events if "LayerNormBackward" in event["name"]]
    norms = 2 * tiny.adamw.model.depth + 1
    updates = min(3, tiny.UPDATES - first + 1)
    named = [event for event in backward if event["name"].startswith("autograd::engine")]
    assert len(named) == updates * layout.accumulation * norms
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    losses = [line["loss"] for line in map(json.loads, lines) if "grad_norm" in line]
    assert losses == train_single(tiny.adamw)[1]


def test_a_trace_of_no_update_is_refused() -> None:
    recipe = tiny.adamw
    command = Command("tiny", recipe, Run(engine="single", profile=recipe.updates + 1), ())
    with pytest.raises(ValueError, match=rf"--profile .*{recipe.updates} updates; name one"):
        check(command, 1)
