"""What a start that is refused leaves (nothing), and requests to stop a run that does not run."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from small import TINY, content

from bigvit.checkpoint.run import checkpoints_of
from bigvit.cli import main as bigvit
from bigvit.recipe.parse import parse
from bigvit.train import main
from bigvit.training.run_folder import RunFolder, status_of

COMMAND = ("digits_vit", *TINY, "--engine", "single", "--workers", "0", "--run-dir")


@pytest.fixture
def stopped(tmp_path: Path, stopped_run: Path) -> Path:
    """A run that was stopped at update 4, and is not running."""
    shutil.copytree(stopped_run, tmp_path / "run")
    return tmp_path / "run"


def test_a_start_that_is_refused_leaves_nothing_and_the_right_command_is_taken(tmp_path, capfd):
    wrong = tmp_path / "text.pth"
    wrong.write_text("no weights")
    run = tmp_path / "deep" / "run"
    assert main([*COMMAND, str(run), "--starts-from", "x", "--init", str(wrong)]) == 2
    assert "text.pth" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["text.pth"]
    assert main([*COMMAND, str(run), "--stop-after", "1"]) == 85


def test_a_start_on_a_damaged_checkpoint_changes_nothing_that_was_said(stopped, capfd):
    for checkpoint in checkpoints_of(stopped):
        for file in checkpoint.glob("*.safetensors"):
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            file.write_bytes(data)
    before = content(stopped)
    assert main([*COMMAND, str(stopped), "--resume", "auto"]) == 2
    after = content(stopped)
    assert {**after, "lock": b""} == {**before, "lock": b""}


def test_a_refused_start_leaves_what_another_job_has_written_meanwhile(tmp_path):
    """A folder that it made is removed where it is empty, and a lock that it made."""
    command = parse(["digits_vit"])
    folder = RunFolder(tmp_path / "run", command, 1)
    (tmp_path / "run" / "stop").touch()
    folder.close()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["stop"]
    again = RunFolder(tmp_path / "run", command, 1)
    again.accept()
    again.close()
    assert (tmp_path / "run" / "lock").exists()


def test_a_queued_run_that_is_asked_to_stop_stops_at_its_next_start(stopped, capsys):
    assert bigvit(["stop", str(stopped)]) == 0
    said = capsys.readouterr().out
    assert "is not running (requeue): its next start will stop at once" in said
    hour = time.time() + 3600  # a file server's clock may be ahead, or behind
    os.utime(stopped / "stop", (hour, hour))
    before = checkpoints_of(stopped)
    assert main([*COMMAND, str(stopped), "--resume", "auto"]) == 85
    status = status_of(stopped)
    assert (status["state"], status["exit_code"], status["update"]) == ("requeue", 85, 4)
    assert status["reason"] == "bigvit stop, before the start"
    assert checkpoints_of(stopped) == before and not (stopped / "stop").exists()
    assert main([*COMMAND, str(stopped), "--resume", "auto", "--stop-after", "6"]) == 85
    assert status_of(stopped)["update"] == 6


def test_an_old_request_is_one_that_nobody_has_honoured(stopped):
    (stopped / "stop").touch()
    os.utime(stopped / "stop", (0, 0))
    assert main([*COMMAND, str(stopped), "--resume", "auto"]) == 85
    assert status_of(stopped)["update"] == 4


def test_a_run_that_is_done_is_not_asked_to_stop(stopped, capsys):
    status = json.loads((stopped / "status.json").read_text())
    (stopped / "status.json").write_text(json.dumps({**status, "state": "done"}))
    before = content(stopped)
    assert bigvit(["stop", str(stopped)]) == 2
    assert "is done; there is nothing to stop" in capsys.readouterr().err
    assert content(stopped) == before


def test_a_run_that_is_starting_or_was_killed_while_it_did_has_a_status(tmp_path, capsys):
    with pytest.raises(ValueError, match="not a run folder"):
        status_of(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").write_text("process 1 on gone\n")
    assert status_of(tmp_path / "run")["state"] == "killed"
    assert bigvit(["status", str(tmp_path / "run")]) == 0
    assert "killed" in capsys.readouterr().out
