"""The best checkpoint is kept, and a run that gets no better is done."""

import json
from pathlib import Path
from typing import Any

import pytest
from small import TINY

from bigvit.checkpoint.manifest import step_name
from bigvit.cli import main as bigvit
from bigvit.evaluate import evaluate_checkpoint
from bigvit.recipes.digits import digits_vit
from bigvit.train import main

EPOCH = digits_vit.updates_per_epoch
SAME = ("--optim.lr", "1e-12", "--schedule.warmup-epochs", "0", "--schedule.epochs", "9")
OPTIONS = ("--engine", "single", "--workers", "0", "--checkpoint-every", "40", "--keep", "1")


def train(run: Path, *options: object) -> int:
    words = (*TINY, *SAME, *OPTIONS, "--keep-best", "top1", "--run-dir", run, *options)
    return main(["digits_vit", *map(str, words)])


def status(run: Path) -> dict[str, Any]:
    return json.loads((run / "status.json").read_text())


def evaluations(run: Path) -> list[int]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["batch"] for line in lines if line["kind"] == "evaluation"]


def test_a_run_that_gets_no_better_is_done_also_where_it_was_stopped_meanwhile(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    assert train(whole, "--patience", 2) == 0
    said = capfd.readouterr().out
    why = f"no better top1 in 2 evaluations: the best is {evaluate(whole):.4g}, after batch {EPOCH}"
    assert status(whole)["state"] == "done" and status(whole)["reason"] == f"{why} (--patience)"
    assert why in said and f"bigvit evaluate {whole}@best; " in said
    assert evaluations(whole) == [EPOCH, 2 * EPOCH, 3 * EPOCH]
    # the newest one, and the best, which is older
    kept = [step_name(EPOCH), step_name(3 * EPOCH)]
    assert sorted(path.name for path in (whole / "checkpoints").iterdir()) == kept
    # a run that was stopped and gone on with knows what came before
    assert train(halves, "--patience", 2, "--stop-after", EPOCH + 10) == 85
    assert train(halves, "--patience", 2, "--resume", "auto") == 0
    assert evaluations(halves) == evaluations(whole)
    assert sorted(path.name for path in (halves / "checkpoints").iterdir()) == kept
    # it is done, unless it is to have more patience
    assert train(halves, "--patience", 2, "--resume", "auto") == 0
    assert evaluations(halves) == evaluations(whole)
    assert train(halves, "--patience", 3, "--resume", "auto") == 0
    assert evaluations(halves) == [*evaluations(whole), 4 * EPOCH]


def evaluate(run: Path) -> float:
    return evaluate_checkpoint(run.with_name(f"{run.name}@best"), 64)["top1"]


def test_what_reads_a_model_takes_the_best(tmp_path: Path, capfd: Any) -> None:
    run = tmp_path / "run"
    assert train(run, "--stop-after", 2 * EPOCH) == 85
    best = f"{run}@best"
    capfd.readouterr()
    assert bigvit(["evaluate", best]) == 0
    assert json.loads(capfd.readouterr().out)["checkpoint"].endswith(step_name(EPOCH))
    assert bigvit(["export", best]) == 0
    assert (run / "export" / "config.json").is_file() and not Path(best).exists()
