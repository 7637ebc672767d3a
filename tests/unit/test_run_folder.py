"""Where a run begins, and the folder that tells what it does."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bigvit import __version__
from bigvit.checkpoint.manifest import Manifest, step_name, write_manifest
from bigvit.checkpoint.retention import prune
from bigvit.checkpoint.run import checkpoints_of, find_checkpoint
from bigvit.recipe import Recipe, Run
from bigvit.recipe.parse import Command
from bigvit.recipe.store import to_json
from bigvit.recipes.digits import digits_vit
from bigvit.training.run_folder import RunFolder, status_of
from bigvit.training.start import Start, plan_start

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


def command(recipe: Recipe = digits_vit, **run: Any) -> Command:
    return Command("digits_vit", recipe, Run(**run), ("--seed", "0"))


@contextmanager
def opened(path: Path, recipe: Recipe = digits_vit) -> Iterator[RunFolder]:
    """A run folder, until its job ends."""
    folder = RunFolder(path, command(recipe), world=2)
    try:
        yield folder
    finally:
        folder.lock.close()


def checkpoint(run: Path, update: int, recipe: Recipe = digits_vit) -> Path:
    """A checkpoint of a run, holding no tensors."""
    folder = run / "checkpoints" / step_name(update)
    folder.mkdir(parents=True)
    steps = {"optimizer_steps": update}
    write_manifest(folder, Manifest(update, update, to_json(recipe), steps, files=(), tensors=()))
    return folder


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run that was started, and has no checkpoint."""
    with opened(tmp_path / "run") as folder:
        folder.accept()
        return tmp_path / "run"


def everything(folder: Path) -> dict[str, bytes | None]:
    """All files and folders with their contents, but for locks: closing one would free it."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if path.name != "lock"
    }


def refusal(tmp_path: Path, of: Command) -> str:
    """What a refused start says; it changes nothing."""
    before = everything(tmp_path)
    with pytest.raises(ValueError) as refused:
        plan_start(of)
    assert everything(tmp_path) == before
    return str(refused.value)


def test_a_new_folder_starts_fresh_and_is_not_made_yet(tmp_path: Path) -> None:
    for resume in (None, "auto"):
        start = plan_start(command(run_dir=tmp_path / "a" / "b", resume=resume))
        assert start == Start(tmp_path / "a" / "b", None)
    assert everything(tmp_path) == {}


def test_without_a_run_dir_the_folder_is_runs_and_the_recipes_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert plan_start(command()) == Start(Path("runs/digits_vit"), None)


def test_an_empty_folder_is_accepted(tmp_path: Path) -> None:
    for resume in (None, "auto"):
        assert plan_start(command(run_dir=tmp_path, resume=resume)) == Start(tmp_path, None)


def test_a_folder_whose_job_died_before_describing_it_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "lock").touch()
    (tmp_path / ".recipe.json.aside").write_text("{")
    assert plan_start(command(run_dir=tmp_path)) == Start(tmp_path, None)


def test_a_run_is_not_started_over_without_resume(tmp_path: Path, run_dir: Path) -> None:
    assert plan_start(command(run_dir=run_dir)).checkpoint is None  # nothing was logged yet
    (run_dir / "metrics.jsonl").touch()
    said = refusal(tmp_path, command(run_dir=run_dir))
    assert f"{run_dir} holds a run already" in said
    assert "--resume auto" in said and "--run-dir" in said


@pytest.mark.parametrize("resume", [None, "auto"])
def test_a_run_of_another_recipe_is_refused_with_field_and_both_values(
    tmp_path: Path, run_dir: Path, resume: str | None
) -> None:
    other = replace(digits_vit, optim=replace(digits_vit.optim, lr=0.5), seed=3)
    said = refusal(tmp_path, command(other, run_dir=run_dir, resume=resume))
    assert "optim.lr: 0.004 -> 0.5\n" in said
    assert "seed: 0 -> 3\n" in said
    assert "betas" not in said


@pytest.mark.parametrize("resume", [None, "auto"])
def test_a_folder_with_foreign_files_is_refused(tmp_path: Path, resume: str | None) -> None:
    (tmp_path / "thesis.tex").touch()
    said = refusal(tmp_path, command(run_dir=tmp_path, resume=resume))
    assert f"--run-dir {tmp_path}" in said and "thesis.tex" in said


def test_a_regular_file_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "not a folder" in refusal(tmp_path, command(run_dir=tmp_path / "file"))


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null", "\udcff"])
def test_a_damaged_recipe_json_is_refused(tmp_path: Path, run_dir: Path, content: str) -> None:
    (run_dir / "recipe.json").write_bytes(content.encode(errors="surrogateescape"))
    said = refusal(tmp_path, command(run_dir=run_dir, resume="auto"))
    assert f"--run-dir {run_dir}" in said and "recipe.json is damaged" in said


def test_a_path_below_a_regular_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = refusal(tmp_path, command(run_dir=tmp_path / "file" / "a" / "run"))
    assert f"{tmp_path / 'file'} cannot be written to" in said


def test_resume_auto_of_a_run_without_checkpoints_starts_fresh(run_dir: Path) -> None:
    assert plan_start(command(run_dir=run_dir, resume="auto")) == Start(run_dir, None)


def test_resume_auto_takes_the_newest_checkpoint(run_dir: Path) -> None:
    two, thirty, four = (checkpoint(run_dir, update) for update in (2, 30, 4))
    (run_dir / "checkpoints" / f".{step_name(31)}.aside").mkdir()
    (run_dir / "checkpoints" / "step_99").mkdir()
    start = plan_start(command(run_dir=run_dir, resume="auto"))
    assert start == Start(run_dir, thirty, older=(four, two))


def test_resume_from_a_run_folder_goes_on_there_from_its_newest(run_dir: Path) -> None:
    older = checkpoint(run_dir, 2)
    found = checkpoint(run_dir, 3), (older,)
    assert plan_start(command(resume=str(run_dir))) == Start(run_dir.resolve(), *found)
    assert plan_start(command(run_dir=run_dir, resume=str(run_dir))) == Start(run_dir, *found)


def test_a_checkpoint_that_is_not_whole_is_passed_over_and_named(run_dir: Path) -> None:
    oldest, older, damaged = (checkpoint(run_dir, update) for update in (2, 3, 4))
    (damaged / "manifest.json").write_text("{")
    (oldest / "manifest.json").unlink()
    start = plan_start(command(run_dir=run_dir, resume="auto"))
    assert (start.checkpoint, start.older) == (older, ())
    (reason,) = start.damaged
    assert str(damaged / "manifest.json") in reason
    assert find_checkpoint(run_dir) == older


def test_resume_from_a_checkpoint_goes_on_in_its_run(run_dir: Path) -> None:
    newest = checkpoint(run_dir, 3)
    assert plan_start(command(resume=str(newest))) == Start(run_dir.resolve(), newest)


def test_resume_from_an_older_checkpoint_is_refused_in_the_same_run(
    tmp_path: Path, run_dir: Path
) -> None:
    older = checkpoint(run_dir, 2)
    checkpoint(run_dir, 3)
    for folder in (None, run_dir):
        said = refusal(tmp_path, command(run_dir=folder, resume=str(older)))
        assert f"newer checkpoints than {older.name}" in said


def test_an_older_checkpoint_may_begin_another_run(tmp_path: Path, run_dir: Path) -> None:
    older = checkpoint(run_dir, 2)
    checkpoint(run_dir, 3)
    start = plan_start(command(run_dir=tmp_path / "branch", resume=str(older)))
    assert start == Start(tmp_path / "branch", older)


def test_a_checkpoint_does_not_go_on_in_a_folder_that_holds_another_run(
    tmp_path: Path, run_dir: Path
) -> None:
    with opened(tmp_path / "other") as folder:
        folder.accept()
        (tmp_path / "other" / "metrics.jsonl").touch()
    said = refusal(
        tmp_path, command(run_dir=tmp_path / "other", resume=str(checkpoint(run_dir, 2)))
    )
    assert f"{tmp_path / 'other'} holds a run already" in said


def test_resume_from_nothing_is_refused(tmp_path: Path, run_dir: Path) -> None:
    absent = tmp_path / "absent"
    assert f"no run folder or checkpoint {absent}" in refusal(tmp_path, command(resume=str(absent)))
    gone = run_dir / "checkpoints" / step_name(5)
    assert str(gone) in refusal(tmp_path, command(resume=str(gone)))


def test_resume_from_a_run_without_checkpoints_is_refused(tmp_path: Path, run_dir: Path) -> None:
    assert f"{run_dir} holds no checkpoint" in refusal(tmp_path, command(resume=str(run_dir)))


def test_resume_from_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    said = refusal(tmp_path, command(resume=str(tmp_path / "photos")))
    assert "neither a run folder nor a checkpoint" in said


@pytest.mark.parametrize("how", ["auto", "path"])
def test_resume_from_a_damaged_checkpoint_is_refused_with_the_file(
    tmp_path: Path, run_dir: Path, how: str
) -> None:
    manifest = checkpoint(run_dir, 2) / "manifest.json"
    manifest.write_text("{")
    resume = "auto" if how == "auto" else str(manifest.parent)
    said = refusal(tmp_path, command(run_dir=run_dir, resume=resume))
    assert f"--resume {resume}" in said and str(manifest) in said


def test_resume_from_a_checkpoint_of_another_recipe_is_refused(
    tmp_path: Path, run_dir: Path
) -> None:
    other = checkpoint(run_dir, 2, replace(digits_vit, seed=3))
    said = refusal(tmp_path, command(run_dir=tmp_path / "new", resume=str(other)))
    assert "seed: 3 -> 0" in said and str(other) in said


def test_a_stop_at_or_before_the_checkpoint_is_refused(tmp_path: Path, run_dir: Path) -> None:
    checkpoint(run_dir, 5)
    for stop in (4, 5):
        said = refusal(tmp_path, command(run_dir=run_dir, resume="auto", stop_after=stop))
        assert f"--stop-after {stop}" in said and "at 5 already" in said
    assert plan_start(command(run_dir=run_dir, resume="auto", stop_after=6)).checkpoint


def test_find_checkpoint_takes_a_checkpoint_or_a_runs_newest(run_dir: Path) -> None:
    older, newest = checkpoint(run_dir, 9), checkpoint(run_dir, 10)
    assert find_checkpoint(older) == older
    assert find_checkpoint(run_dir) == newest


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
