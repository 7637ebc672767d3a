"""A resumed run equals one that was never stopped: every weight, moment and logged loss."""

import json
from pathlib import Path

import pytest
import tiny
import torch
from safetensors import safe_open

from bigvit.checkpoint.manifest import read_manifest, step_name

ADAMS = {"exp_avg", "exp_avg_sq"}


def state(run: Path, updates: int) -> dict[str, torch.Tensor]:
    """Every slice of a run's last checkpoint, by its file and name."""
    folder = run / "checkpoints" / step_name(updates)
    slices: dict[str, torch.Tensor] = {}
    for file in read_manifest(folder).files:
        with safe_open(folder / file.name, framework="pt") as opened:
            slices |= {f"{file.name} {key}": opened.get_tensor(key) for key in opened.keys()}
    return slices


def logged(run: Path) -> list[tuple[int, float, float, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        (line["batch"], line["loss"], line["lr"], line["grad_norm"])
        for line in lines
        if "loss" in line
    ]


def evaluated(run: Path) -> list[tuple[int, int, int]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        (line["update"], line["images"], line["top1_correct"]) for line in lines if "top1" in line
    ]


def assert_equal(
    halves: Path, whole: Path, updates: int = tiny.UPDATES, moments: set[str] = ADAMS
) -> None:
    a, b = state(halves, updates), state(whole, updates)
    kinds = {key.split()[1].split("/")[0] for key in a}
    assert a.keys() == b.keys() and kinds >= {"weight", *moments}
    different = [key for key in a if not torch.equal(a[key], b[key])]
    assert not different
    assert logged(halves) == logged(whole)
    assert [line[0] for line in logged(whole)] == list(range(1, updates + 1))
    assert evaluated(halves) == evaluated(whole)
    assert (evaluated(whole) == []) == (updates < tiny.adamw.updates_per_epoch)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_stopped_in_mid_epoch_and_resumed_in_new_processes(stage, resumed):
    assert_equal(resumed / f"halves_{stage}", resumed / f"whole_{stage}")


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bf16_stopped_in_mid_epoch_and_resumed(stage, two_ranks):
    halves, whole = two_ranks / f"bf16_halves_{stage}", two_ranks / f"bf16_{stage}"
    assert_equal(halves, whole, updates=tiny.SHORT)


def test_a_stopped_run_says_so(two_ranks):
    status = json.loads((two_ranks / "whole_1" / "status.json").read_text())
    assert (status["state"], status["update"]) == ("requeue", tiny.UPDATES)
