"""Runs under DeepSpeed on all GPUs: what they learn, their bits, and where the host waits."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bigvit.checkpoint.load import read_weights
from bigvit.checkpoint.run import checkpoints_of

sys.path[:0] = [str(Path(__file__).parent.parent / room) for room in ("faults", "engines")]
from reference import distance  # noqa: E402
from small import differing  # noqa: E402

pytestmark = pytest.mark.gpu

STAGES = (1, 2, 3)
Say = Callable[[str, object], None]


@pytest.fixture(scope="session")
def free(scenarios, device) -> Path:
    """The folder after runs by kernels that sum in any order."""
    compiled = ["compiled"] if device.type == "cuda" else []  # the compiler knows no other
    return scenarios("waits", "any_order", "demo", *compiled)


@pytest.fixture(scope="session")
def fixed(scenarios) -> Path:
    """The folder after runs by kernels that sum in a fixed order."""
    return scenarios("first_part", "under_way")


@pytest.fixture(scope="session")
def resumed(scenarios, fixed) -> Path:
    return scenarios("second_part")


def last(run: Path) -> Path:
    return checkpoints_of(run)[-1]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("stage", STAGES)
def test_the_demo_learns(free, device, stage, precision, record_property: Say):
    if device.type == "cpu" and precision == "fp16":
        pytest.skip("DeepSpeed has fp16 on a GPU only")
    lines = (free / f"demo_{stage}_{precision}" / "metrics.jsonl").read_text().splitlines()
    top1 = next(line["top1"] for line in map(json.loads, reversed(lines)) if "top1" in line)
    record_property("shown", f"top-1 {top1:.1f} %")
    assert device.type != "cuda" or top1 > 50  # elsewhere it is one epoch of one block


@pytest.mark.parametrize("run", [*map(str, STAGES), "lamb"])
def test_a_resumed_run_has_the_same_bits_by_deterministic_kernels(resumed, run):
    whole, parts = (last(resumed / f"{name}_{run}") for name in ("whole", "parts"))
    assert whole.name == parts.name
    assert differing(whole, parts) == []


def test_how_far_two_runs_are_apart_without(free, record_property: Say):
    difference = distance(*(read_weights(last(free / name))[1] for name in ("once", "twice")))
    record_property("shown", f"{difference:.1e}")
    assert difference < 0.2  # bf16


def test_a_checkpoint_under_way_is_that_of_a_run_that_waited(fixed):
    beside, waited = (checkpoints_of(fixed / name) for name in ("beside", "waited"))
    assert [path.name for path in beside] == [path.name for path in waited]
    assert len(beside) > 2
    for one, other in zip(beside, waited, strict=True):
        assert differing(one, other) == []


@pytest.mark.parametrize("stage", STAGES)
def test_an_update_that_logs_nothing_waits_nowhere_in_ours(free, stage, record_property: Say):
    found: dict[str, int] = json.loads((free / "waits.json").read_text())[str(stage)]
    record_property("shown", ", ".join(f"{who} {n}" for who, n in found.items()) or "none")
    assert found.get("ours", 0) == 0, found


def test_compiled_blocks_are_eager_ones(free, device, record_property: Say):
    if device.type != "cuda":
        pytest.skip("torch's compiler knows no pretend device")
    difference = json.loads((free / "compiled.json").read_text())
    record_property("shown", f"{difference:.1e}")
    assert difference < 1e-3


def test_one_message_says_what_to_change_where_memory_is_short(
    device, world, launch: Callable[..., Any], tmp_path: Path
):
    if device.type != "cuda":
        pytest.skip("tests/faults/test_device_errors.py raises the error where no GPU does")
    pytest.importorskip("tyro")
    words = ("digits_vit", "--model.embed-dim", 512, "--batch-size", 1024, "--workers", 0)
    script = Path(__file__).with_name("little_memory.py")
    done = launch(world, script, *words, "--run-dir", tmp_path / "run", timeout=60)
    assert done.code == 1 and "Traceback" not in done.output, done.output
    said = re.findall(r"^error: (.*)$", done.output, re.MULTILINE)
    assert len(said) == 1, done.output
    assert re.search(r"update \d+: out of memory \(.*use --micro-batch \d+ \(\d+ now\)", said[0])
