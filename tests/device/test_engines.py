"""The engines on a device that is not the host's memory: what they are on a CPU.

The ordinary run has every stage, both optimizers and each that stands for others, for a few
updates; the slow tests run all of tests/engines there.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import guards
import precision
import pytest
import runs
import torch
from reference import distance, evaluated_alone, trained
from test_before import BEFORE
from test_resume import logged, state

from tests.conftest import ROOT


def lines(run: Path) -> list[dict]:
    found = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in found if "grad_norm" in line]


@pytest.mark.parametrize("recipe", runs.RUNS)
def test_losses_and_norms_are_the_cpus(recipe, device_runs):
    before = BEFORE[recipe]
    for run in runs.RUNS[recipe]:
        assert run in before["runs"]
        found = lines(device_runs / run)
        assert len(found) >= runs.UPDATES
        for key in ("loss", "grad_norm"):
            wanted = before[key][: len(found)]
            assert [line[key] for line in found] == pytest.approx(wanted, rel=2e-6), run


def test_fsdp2_is_what_deepspeed_is(device_runs):
    found, wanted = (lines(device_runs / name) for name in (runs.FSDP2, "whole_2"))
    assert len(found) == len(wanted) == runs.UPDATES
    for key in ("loss", "grad_norm"):
        here = [line[key] for line in found]
        assert here == pytest.approx([line[key] for line in wanted], rel=2e-6)


def test_a_run_resumed_with_data_workers_equals_one_that_was_not_stopped(device_runs):
    halves, whole = device_runs / "halves", device_runs / f"whole_{runs.RESUMED}"
    a, b = state(halves, runs.UPDATES), state(whole, runs.UPDATES)
    assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
    assert logged(halves) == logged(whole) and len(logged(whole)) == runs.UPDATES


def test_bf16_is_identical_at_stages_1_and_2(device_runs):
    one, other = (trained(device_runs / f"bf16_{stage}", runs.STOP) for stage in runs.HALF)
    assert distance(one, other) == 0


def test_an_overflow_in_fp16_skips_exactly_one_update(device_runs):
    found = lines(device_runs / f"fp16_{runs.FP16}")
    skipped = [line["grad_norm"] is None for line in found]
    assert skipped == [i == precision.OVERFLOWS for i in range(precision.OVERFLOWS + 2)]
    assert found[0]["grad_norm"] > 0.05  # what it is in fp32, whatever the scale


def test_given_weights_are_those_at_every_stage(device_runs):
    found = json.loads((device_runs / "given_weights.json").read_text())
    assert all(found[str(stage)] == found["given"] for stage in guards.STAGES)


def test_an_evaluation_counts_what_a_cpu_counts(device_runs):
    here = evaluated_alone()
    loss = here.pop("test_loss")
    for counts in json.loads((device_runs / "counts_2.json").read_text()).values():
        assert counts.pop("test_loss") == pytest.approx(loss, rel=1e-6, abs=0)
        assert counts == here


@pytest.mark.slow
def test_all_tests_of_engines_pass_there(environment):
    """Also what they compare with is computed on the device; what cannot be says why."""
    tests = ROOT / "tests" / "engines"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    print(done.stdout[-5000:])
    assert done.returncode == 0
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 80
