"""The folder that tells what a run does."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from folders import checkpoint, command, everything, opened

from bigvit import __version__
from bigvit.checkpoint.manifest import step_name
from bigvit.checkpoint.retention import prune
from bigvit.checkpoint.run import checkpoints_of
from bigvit.recipe.store import to_json
from bigvit.recipes.digits import digits_vit
from bigvit.training.run_folder import RunFolder, status_of

# opens the run folder argv[1]; says so; a child of it, like a worker, lives on
HOLD = """
import os, sys
from pathlib import Path
from bigvit.training.run_folder import RunFolder, status_of
from bigvit.recipe import Run
from bigvit.recipe.parse import Command
from bigvit.recipes.digits import digits_vit

try:
    folder = RunFolder(Path(sys.argv[1]), Command("digits_vit", digits_vit, Run(), ()), 1)
except ValueError as error:
    print(error, flush=True)
    sys.exit(2)
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print("ready", flush=True)
sys.stdin.read()
"""


def test_recipe_json_says_what_is_run(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as folder:
        folder.accept()
        described = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert described["name"] == "digits_vit"
    assert described["recipe"] == to_json(digits_vit)
    assert described["overrides"] == ["--seed", "0"]
    assert described["world"] == 2
    assert described["run"]["sharding"] == "zero1"
    assert described["versions"]["bigvit"] == __version__
    assert {"torch", "deepspeed", "timm", "numpy", "python"} <= set(described["versions"])
    assert "git" in described


def held(path: Path) -> "subprocess.Popen[str]":
    """Another process that opens a run folder, after it said how that went."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=pipe, stdout=pipe, text=True
    )


def test_a_folder_in_use_is_refused_with_its_holder(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as folder:
        folder.write_status()
        before = everything(tmp_path)
        other = held(tmp_path / "run")
        said, _ = other.communicate(timeout=60)
        assert other.returncode == 2
        assert "is in use by another job" in said
        assert f"process {os.getpid()} on " in said
        assert everything(tmp_path) == before


def test_a_killed_jobs_folder_is_free_though_its_workers_live(tmp_path: Path) -> None:
    other = held(tmp_path / "run")
    assert other.stdin is not None and other.stdout is not None
    try:
        assert other.stdout.readline() == "ready\n"
        status = {"state": "running", "update": 3}
        (tmp_path / "run" / "status.json").write_text(json.dumps(status))
        assert status_of(tmp_path / "run") == status
        rival = held(tmp_path / "run")
        said, _ = rival.communicate(timeout=60)
        assert rival.returncode == 2
        assert f"process {other.pid} on " in said
        other.send_signal(signal.SIGKILL)
        other.wait(timeout=60)
        assert status_of(tmp_path / "run") == {"state": "killed", "update": 3}
        with opened(tmp_path / "run"):
            assert f"process {os.getpid()} on " in (tmp_path / "run" / "lock").read_text()
            assert str(other.pid) not in (tmp_path / "run" / "lock").read_text()
    finally:
        other.kill()
        other.wait()
        other.stdin.close()
        other.stdout.close()


def test_a_folder_below_a_file_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="--run-dir .* cannot be written to"):
        RunFolder(tmp_path / "file" / "run", command(), 1)


def test_lines_after_the_resumed_update_and_broken_ones_are_dropped(tmp_path: Path) -> None:
    lines = [{"update": n, "loss": 1 / n} for n in (10, 20, 30, 40)]
    lines.insert(2, {"update": 20, "top1": 50.0})
    with opened(tmp_path) as folder:
        folder.forget_after(0)
        for line in lines:
            folder.log(line)
        with folder.metrics.open("a") as file:
            file.write('{"update": 1')
    with opened(tmp_path) as folder:
        folder.forget_after(20)
        folder.log({"update": 30, "loss": 9.0})
    read = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert read == [*lines[:3], {"update": 30, "loss": 9.0}]


@pytest.mark.parametrize(
    "broken", ['{"update": 1', "12", "null", "[]", '"update"', '{"loss": 1}', '{"update": null}']
)
def test_a_line_that_says_no_update_is_dropped(tmp_path: Path, broken: str) -> None:
    whole = '{"update": 1, "loss": 2.0}\n'
    (tmp_path / "metrics.jsonl").write_text(f"{broken}\n{whole}{broken}")
    with opened(tmp_path) as folder:
        folder.forget_after(1)
    assert (tmp_path / "metrics.jsonl").read_text() == whole


def test_a_run_without_lines_yet_can_be_taken_up(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        folder.forget_after(0)
        assert not folder.metrics.exists()


def test_status_json_says_what_the_run_does_and_why_it_ended(tmp_path: Path) -> None:
    def status() -> dict[str, Any]:
        return json.loads((tmp_path / "status.json").read_text())

    with opened(tmp_path) as folder:
        folder.update = 7
        folder.write_status()
        first = status()
        assert (first["state"], first["update"], first["exit_code"]) == ("running", 7, None)
        assert first["process"] == os.getpid()
        assert first["host"] and first["time"]
        folder.update = 9
        folder.write_status(3, "the loss is not finite")
        ended = status()
        assert (ended["state"], ended["update"], ended["exit_code"]) == ("error", 9, 3)
        assert ended["reason"] == "the loss is not finite"
        folder.write_status(85)
        assert (status()["state"], status()["reason"]) == ("requeue", "")
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_the_newest_whole_ones_are_kept_and_those_at_a_multiple(tmp_path: Path) -> None:
    made = {update: checkpoint(tmp_path, update) for update in (5, 10, 12, 15, 20, 22)}
    for update in (12, 22):
        (made[update] / "manifest.json").write_text("{")
    prune(tmp_path / "checkpoints", keep=2, keep_every=10)
    assert [path.name for path in checkpoints_of(tmp_path)] == [
        step_name(n) for n in (10, 15, 20, 22)
    ]
    prune(tmp_path / "checkpoints", keep=3)  # the only good ones stay, with what lies between
    assert [path.name for path in checkpoints_of(tmp_path)] == [
        step_name(n) for n in (10, 15, 20, 22)
    ]
    prune(tmp_path / "checkpoints", keep=1)
    assert [path.name for path in checkpoints_of(tmp_path)] == [step_name(n) for n in (20, 22)]
