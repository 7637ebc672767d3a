"""The learning rate that a run uses, across a stop and a resume, is the closed formula's."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bigvit.checkpoint.load import read_weights
from bigvit.recipe import Images, WarmupStableDecay
from bigvit.recipe.find import find_recipe
from bigvit.recipe.store import to_json
from bigvit.train import main

FILE = """
import json
from bigvit.recipe.store import recipe_from_json
short = recipe_from_json(json.loads({recipe!r}))
"""


@pytest.mark.parametrize("name", ["deit3_s16_in1k_224", "deit3_s16_in1k_224_800e"])
def test_a_shortened_schedule_of_deit3(name: str, tmp_path: Path) -> None:
    _, published = find_recipe(name)
    assert isinstance(published.data, Images)
    _, digits = find_recipe("digits_vit")
    epochs = published.epochs // 100  # 4 or 8, of 3 updates each
    schedule = replace(published.schedule, epochs=epochs, warmup_epochs=1)
    model = replace(digits.model, embed_dim=16, depth=1, num_heads=2)
    recipe = replace(digits, model=model, schedule=schedule, optim=published.optim, batch_size=499)
    (tmp_path / "short.py").write_text(FILE.format(recipe=json.dumps(to_json(recipe))))
    options = ["--engine", "single", "--run-dir", str(tmp_path / "run"), "--log-every", "1"]
    command = [str(tmp_path / "short.py"), *options, "--workers", "0"]
    assert main([*command, "--stop-after", "5"]) == 85
    assert main([*command, "--resume", "auto"]) == 0

    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    trace = {line["update"]: line["lr"] for line in lines if "lr" in line}
    peak, low, start, total = published.optim.lr, 1e-5, 1e-6, 3 * epochs
    assert list(trace) == list(range(1, total + 1))
    for update, lr in trace.items():
        done = update - 1
        cosine = low + (peak - low) * (1 + math.cos(math.pi * done / total)) / 2
        wanted = start + (peak - start) * done / 3 if done < 3 else cosine
        assert lr == pytest.approx(wanted, rel=1e-12, abs=0)


def test_a_run_goes_on_with_more_epochs_from_before_its_decay_as_if_they_had_been_planned(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, digits = find_recipe("digits_vit")
    schedule = WarmupStableDecay(
        epochs=3, warmup_epochs=1, warmup_lr=1e-6, decay_epochs=1, decay="1-sqrt", min_lr=0.0
    )
    model = replace(digits.model, embed_dim=16, depth=1, num_heads=2)
    recipe = replace(digits, model=model, schedule=schedule, batch_size=499)
    (tmp_path / "short.py").write_text(FILE.format(recipe=json.dumps(to_json(recipe))))
    command = [str(tmp_path / "short.py"), "--engine", "single", "--workers", "0"]
    short, longer = [*command, "--checkpoint-every", "6"], ["--schedule.epochs", "5"]
    longer_run, planned_run = tmp_path / "longer", tmp_path / "planned"
    assert main([*short, "--run-dir", str(tmp_path / "run")]) == 0
    before = str(tmp_path / "run" / "checkpoints" / "step_00000006")  # the last one before it
    on = [*command, *longer, "--resume", before, "--run-dir", str(longer_run), "--log-every", "1"]
    assert main(on) == 2
    assert "schedule.epochs: 3 -> 5" in capfd.readouterr().err
    assert main([*on, "--allow-change", "schedule.epochs"]) == 0
    assert main([*command, *longer, "--run-dir", str(planned_run)]) == 0
    found, planned = (
        read_weights(run / "checkpoints" / "step_00000015")[1] for run in (longer_run, planned_run)
    )
    assert all(torch.equal(weight, planned[name]) for name, weight in found.items())
    lines = map(json.loads, (longer_run / "metrics.jsonl").read_text().splitlines())
    trace = {line["update"]: line["lr"] for line in lines if "lr" in line}
    peak = digits.optim.lr
    last = [peak * (1 - (step / 3) ** 0.5) for step in (1, 2)]
    assert [trace[update] for update in range(7, 16)] == pytest.approx([*[peak] * 7, *last])
