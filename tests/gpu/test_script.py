"""scripts/gpu.sh without a GPU: what of it can run, and what it says where something is wrong."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
HIDE = """
import importlib.machinery, os

find = importlib.machinery.PathFinder.find_spec
hidden = os.environ["HIDDEN"].split()

class Find:  # no function, which pytest would make a method of
    def __call__(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else find(name, path, target)

importlib.machinery.PathFinder.find_spec = Find()
"""


def gpu_sh(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    given = {"BIGVIT_VENV": sys.prefix, "CUDA_VISIBLE_DEVICES": "", **variables}
    return subprocess.run(
        ["bash", ROOT / "scripts/gpu.sh", *options],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        timeout=1000,
    )


def hiding(folder: Path, *names: str) -> dict[str, str]:
    """Variables by which Python finds no packages of these names."""
    (folder / "sitecustomize.py").write_text(HIDE)
    return {"PYTHONPATH": str(folder), "HIDDEN": " ".join(names)}


def results(output: str) -> dict[str, tuple[str, str]]:
    """The table: result and figure by check."""
    table = output[output.index("check ") :]
    lines = [[cell.strip() for cell in line.split("|")] for line in table.splitlines()[2:]]
    return {line[0]: (line[1], line[2]) for line in lines if len(line) == 3}


@pytest.mark.slow
def test_all_that_can_runs_on_the_pretend_device():
    done = gpu_sh("--pretend")
    assert done.returncode == 0, done.stdout + done.stderr
    found = results(done.stdout)
    assert sum(result == "ok" for result, _ in found.values()) > 30
    assert {result for result, _ in found.values()} == {"ok", "skipped"}
    for row in (1, 3, 4, 5, 6, 8, 11):
        assert any(what.startswith(f"row {row}: ") for what in found), done.stdout
    assert found["row 5: waits for the device, ours"] == ("ok", "0 (0)")
    assert found["the demo learns[3-bf16]"][1].startswith("top-1 ")


@pytest.mark.slow
def test_what_needs_no_deepspeed_runs_without(tmp_path):
    hidden = hiding(tmp_path, "deepspeed", "tyro", "fairscale", "datasets", "accelerate")
    done = gpu_sh("--pretend", **hidden)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "deepspeed is not installed: nothing is run by DeepSpeed" in done.stdout
    found = results(done.stdout)
    assert found["the demo learns[3-bf16]"] == ("skipped", "DeepSpeed is not installed")
    assert found["the same bits again and resumed[bf16-lamb]"][0] == "ok"


def test_without_a_gpu_it_says_what_is_missing():
    done = gpu_sh()
    assert done.returncode == 2 and "there is no GPU: torch " in done.stderr
    assert "--pretend runs what can be without" in done.stderr


def test_without_packages_it_names_them(tmp_path):
    done = gpu_sh("--pretend", **hiding(tmp_path, "timm", "sklearn"))
    assert done.returncode == 2
    assert "not installed: timm, scikit-learn" in done.stderr


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("on_gpu", ROOT / "scripts/on_gpu.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_what_failed_is_said_and_a_missed_goal_is_no_failure(script, tmp_path, capsys):
    rows = tmp_path / "rows"
    row = {"what": "speed", "measured": "1.5", "interval": "", "goal": ">= 2", "ok": False}
    rows.write_text(json.dumps(row) + "\n")
    lines = script._benchmark(rows, 0)
    assert script._table(lines, 1) == 0
    assert lines == [("speed", "goal missed", "1.5 (>= 2)")]
    with rows.open("a") as file:
        file.write(json.dumps({**row, "what": "waits", "measured": "1", "goal": "0"}) + "\n")
    assert script._table(script._benchmark(rows, 0), 1) == 1
    assert "gpu: FAILED: waits: 1 (0)" in capsys.readouterr().err
    assert script._benchmark(tmp_path / "none", -11)[-1] == (
        "the benchmark",
        "FAILED",
        "ended with code -11",
    )


def test_each_test_is_a_line_and_one_more_where_they_did_not_end(script, tmp_path):
    (tmp_path / "test_some.py").write_text(
        """
import pytest

def test_it_learns(record_property):
    record_property("shown", "top-1 90 %")

def test_it_breaks():
    assert 1 == 2, "as said"

def test_it_is_left_out():
    pytest.skip("no such device")
"""
    )
    report = tmp_path / "tests.xml"
    options = ("-q", "-W", "default", "-p", "no:cacheprovider", f"--rootdir={tmp_path}")
    command = ("-m", "pytest", tmp_path, *options, f"--junitxml={report}")
    code = script._part(60, *command, "-o", "junit_family=xunit1")
    lines = script._tests(report, code)
    assert lines[0] == ("it learns", "ok", "top-1 90 %")
    assert lines[1][:2] == ("it breaks", "FAILED") and "as said" in lines[1].figure
    assert lines[2] == ("it is left out", "skipped", "no such device")
    assert script._tests(tmp_path / "none", None) == [("the tests", "FAILED", "took too long")]
