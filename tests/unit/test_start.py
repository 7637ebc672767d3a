"""Where a run begins."""

from dataclasses import replace
from pathlib import Path

import pytest
from folders import checkpoint, command, everything, opened

from bigvit.checkpoint.manifest import step_name
from bigvit.checkpoint.run import find_checkpoint
from bigvit.recipe.parse import Command
from bigvit.recipes.digits import digits_vit
from bigvit.training.start import Start, plan_start


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run that was started, and has no checkpoint."""
    with opened(tmp_path / "run") as folder:
        folder.accept()
        return tmp_path / "run"


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
