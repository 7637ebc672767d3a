"""Errors of a device that a person can do something about end all ranks with one message; and
deterministic kernels, as far as a CPU shows them."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from small import TINY, differing

SCRIPT = "tests/faults/device_errors.py"
RUN = (
    *("digits_vit", *TINY, "--schedule.epochs", 1, "--schedule.warmup-epochs", 0, "--workers", 0),
    *("--log-every", 1, "--timeout", 60),
)
MEMORY = r"out of memory \(CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
MEMORY += r"capacity of 79.11 GiB of which 1.50 GiB is free\); use "
HALF = r"--micro-batch \d+ \(\d+ now\)"
STATE = r"--sharding zero2 \(zero1 now\)"
THEN = rf"if that is not enough, --checkpoint-activations 1 \(0 now\), then {STATE}$"
PUT = r"put_ has no kernel for --deterministic here; leave that out"


def slow(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("error", "who", "phase", "reason"),
    [
        ("memory", "1", "update", f"update 4: {MEMORY}{HALF}; {THEN}"),
        ("memory", "all", "update", f"update 4: {MEMORY}{HALF}; {THEN}"),
        ("kernel", "all", "update", f"update 4: {PUT}"),
        slow("memory", "1", "building", f"building the engine: {MEMORY}{STATE}$"),
        slow("memory", "0", "update", f"update 4: {MEMORY}{HALF}; {THEN}"),
        slow("memory", "all", "evaluating", rf"the evaluation after update \d+: {MEMORY}{HALF}; "),
    ],
    ids=lambda word: word if len(word) < 11 else "",
)
def test_one_message_ends_all_ranks(warm, error, who, phase, reason, tmp_path):
    more = ("--deterministic",) if error == "kernel" else ()
    where = (*RUN, "--run-dir", tmp_path / "run", *more)
    done = warm(2, SCRIPT, error, who, phase, tmp_path, *where, timeout=60)
    assert done.code == 1 and done.seconds < 40, done.output
    assert set(done.codes) <= {1, -15} and "Traceback" not in done.output, done.output
    said = re.findall("error: (.*)", done.output)
    assert len(said) == 1, done.output
    named = f"rank [01] on {socket.gethostname()} crashed: "
    assert re.match(f"(?:{named})?{reason}", said[0]), said
    assert who == "0" or who == "all" or said[0].startswith("rank 1 on")
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("error", 1)
    assert said[0] in status["reason"] or status["reason"] in said[0]  # with the rank's name


def run(warm, folder: Path, *more: object) -> tuple[str, list[dict[str, Any]]]:
    """What a run of one epoch says, and the kernels of its ranks."""
    folder.mkdir(exist_ok=True)
    done = warm(2, SCRIPT, "none", "all", "", folder, *RUN, "--run-dir", folder / "run", *more)
    assert done.code == 85, done.output
    return done.output, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def last(folder: Path) -> Path:
    return max((folder / "run" / "checkpoints").glob("step_*"))


def test_kernels_are_fixed_before_anything_is_computed_and_may_change_at_a_stop(warm, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    said, kernels = run(warm, parts, "--deterministic", "--stop-after", 4)
    assert said.count("--deterministic: on a CPU sums have a fixed order anyway") == 1
    given = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Ring"}
    assert kernels == 2 * [{**dict.fromkeys(kernels[0], True), **given}]
    said, kernels = run(warm, parts, "--resume", "auto", "--stop-after", 8)
    assert "--deterministic" not in said and not any(any(each.values()) for each in kernels)
    run(warm, whole, "--stop-after", 8)
    assert differing(last(whole), last(parts)) == []  # on a CPU no bit is another


def test_a_variable_that_lets_sums_take_any_order_is_refused(warm, tmp_path):
    where = ("--run-dir", tmp_path / "run", "--deterministic")
    started = warm.start(
        *(2, SCRIPT, "none", "all", "", tmp_path, *RUN, *where),
        environment={"NCCL_ALGO": "NVLS"},
    )
    done = started.wait(30)
    assert done.code == 2
    assert "error: --deterministic: NCCL_ALGO is 'NVLS'; leave it unset, or" in done.output
    assert not (tmp_path / "run").exists()
