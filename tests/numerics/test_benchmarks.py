"""Benchmarks run, as small ones, and their table and exit code say what they measured."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measure import Row, interleaved, ratio, report

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "name",
    [
        "stochastic_depth",
        pytest.param("activations", marks=pytest.mark.slow),
        pytest.param("manifest", marks=pytest.mark.slow),
        pytest.param("start", marks=pytest.mark.slow),
        pytest.param("optimizer", marks=pytest.mark.slow),
        pytest.param("loader", marks=pytest.mark.slow),
        pytest.param("views", marks=pytest.mark.slow),
        pytest.param("teacher", marks=pytest.mark.slow),
        pytest.param("follower", marks=pytest.mark.slow),
        pytest.param("label_maps", marks=pytest.mark.slow),
    ],
)
def test_a_small_run_prints_its_table(name: str):
    command = [sys.executable, "-m", f"benchmarks.{name}", "--small"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    header, *rows = [line.split(" | ") for line in done.stdout.splitlines() if " | " in line]
    assert [cell.strip() for cell in header] == ["what", "measured", "95 % interval", "goal", "ok"]
    assert len(rows) >= 6 and all(len(row) == 5 for row in rows)
    assert all(math.isfinite(float(row[1].split()[0])) for row in rows)
    if name == "activations":  # counts do not depend on the machine, and hardly on the size
        kept = {row[0].strip(): float(row[1].split()[0]) for row in rows}
        assert kept["kept: nothing dropped"] == pytest.approx(18, abs=0.1)
        assert kept["kept: 0.5 skipped"] == pytest.approx(9, abs=0.1)
        assert kept["kept: 0.5 skipped, every block recomputed"] == pytest.approx(1, abs=0.05)


@pytest.mark.slow
def test_a_small_run_counts_what_localization_costs():
    command = [sys.executable, "-m", "benchmarks.drloc", "--small"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    rows = {cells[0].strip(): cells for cells in map(_cells, done.stdout.splitlines()) if cells}
    # of ViT-T here: 64 pairs x (384 x 512 + 512 x 512 + 512 x 2) of 1.26 G
    products = float(rows["products, + drloc"][1].split()[0])
    assert products == pytest.approx(100 * 64 * (384 * 512 + 512 * 512 + 1024) / 1.258e9, abs=0.1)
    assert float(rows["time of an update, + drloc over without"][1]) > 0


@pytest.mark.slow
def test_a_small_run_compares_on_little_data():
    command = [sys.executable, "-m", "benchmarks.drloc_small_data", "--small"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| digits, 300 |")]
    assert len(rows) == 2 and all(" ± " in row for row in rows)


@pytest.mark.slow
def test_a_small_run_compares_deepspeeds_engine_with_single():
    command = [sys.executable, "-m", "benchmarks.engine", "--small"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    _, *rows = [line.split(" | ") for line in done.stdout.splitlines() if " | " in line]
    assert len(rows) == 3 and all(0.5 < float(row[1]) < 10 for row in rows)


FASHION = Path("/usr/share/datasets/fashion-mnist")


@pytest.mark.slow
@pytest.mark.skipif(not FASHION.is_dir(), reason="Debian's dataset-fashion-mnist is not there")
def test_deep_models_are_trained_and_their_losses_told(launch: Callable[..., Any]):
    done = launch(2, "--module", "benchmarks.deep_layer_scale", FASHION, "--small")
    assert done.code == 0, done.output
    rows = [line.split(" | ") for line in done.output.splitlines() if line.startswith("| ")]
    assert [row[0].strip("| ") for row in rows] == ["blocks", *"222333"]
    for _, _, *cells in rows[1:]:
        assert all(len(cell.strip(" |").split(", ")) == 2 for cell in cells)


def _cells(line: str) -> list[str]:
    return line.split(" | ") if " | " in line else []


def test_a_missed_goal_is_exit_code_1_where_it_is_checked(capsys):
    fine, missed = Row("a", "1", goal="<= 2", ok=True), Row("b", "3", goal="<= 2", ok=False)
    assert report("t", [fine, Row("c", "5")], check=True) == 0
    assert report("t", [fine, missed], check=True) == 1
    assert report("t", [fine, missed], check=False) == 0
    assert "NO" in capsys.readouterr().out


def test_a_ratio_of_medians_and_its_interval():
    found = ratio([2.0, 2.2, 2.1, 2.0, 50.0], [1.0, 1.1, 1.0, 1.0, 1.0])
    assert found.value == 2.1 and 1.9 < found.low <= found.value <= found.high
    same = ratio([1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    assert same == (1, 1, 1)


def test_runs_take_turns():
    seen: list[str] = []
    seconds = interleaved({name: lambda name=name: seen.append(name) for name in "ab"}, rounds=2)
    assert "".join(seen) == "baabba" and {name: len(s) for name, s in seconds.items()} == {
        "a": 2,
        "b": 2,
    }
