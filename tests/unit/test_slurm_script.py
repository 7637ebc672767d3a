"""What scripts/slurm.sbatch does about how a run ended; `srun` and `scontrol` are scripts here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SRUN = """#!/bin/sh
printf '%s\\n' "$@" > "$LOG.srun"
if [ -n "$ASKED" ]; then
    trap 'echo asked > "$LOG.asked"; leave=1' USR1
    sleep 0.3
    kill -USR1 "$PPID"
    while [ -z "$leave" ]; do sleep 0.1; done
fi
[ -z "$STATUS" ] || echo "$STATUS" > "$RUN/status.json"
exit "$CODE"
"""
SCONTROL = """#!/bin/sh
case "$1" in
    show) echo n1; echo n2 ;;
    requeue) echo "$2" > "$LOG.requeued" ;;
esac
"""


def status(state: str, update: int, code: int | None, time: str = "now", reason: str = "") -> str:
    value = {"state": state, "update": update, "exit_code": code, "time": time, "process": 1}
    return json.dumps({**value, "host": "n1", "reason": reason})


@pytest.fixture
def submit(tmp_path: Path):
    """Run the script as Slurm would, with a step that leaves a status and ends with a code."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    run = tmp_path / "run"

    def start(after: str, code: int, before: str = "", asked: bool = False, slots: str = "1"):
        run.mkdir(exist_ok=True)
        for name in ("recipe.json", "lock"):
            (run / name).touch()
        if before:
            (run / "status.json").write_text(before)
        given = {"STATUS": after, "CODE": str(code), "ASKED": "1" if asked else "", "SLOTS": slots}
        folders = {"RUN": str(run), "LOG": str(tmp_path / "log"), "SLURM_SUBMIT_DIR": str(ROOT)}
        job = {"SLURM_JOB_ID": "123", "SLURM_JOB_NODELIST": "n[1-2]", "OMP_NUM_THREADS": "1"}
        venv = {"BIGVIT_VENV": sys.prefix}
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        script = tmp_path / "slurm_script"  # a copy, as Slurm makes one
        script.write_bytes((ROOT / "scripts" / "slurm.sbatch").read_bytes())
        done = subprocess.run(
            ["bash", script, "digits_vit", "--run-dir", run, "--seed", "3"],
            env={**kept, **given, **folders, **job, **venv, **path},
            capture_output=True,
            text=True,
            timeout=60,
        )
        requeued = (tmp_path / "log.requeued").exists()
        return done.returncode, requeued, done.stdout + done.stderr

    return start


def test_a_run_that_is_done_ends_the_job(submit, tmp_path):
    assert submit(status("done", 9, 0), 1)[:2] == (0, False)  # whatever the launcher's code is
    words = (tmp_path / "log.srun").read_text().splitlines()
    assert words[-6:] == ["--run-dir", str(tmp_path / "run"), "--seed", "3", "--resume", "auto"]
    assert f"--output={tmp_path}/run.node%n.log" in words


def test_hosts_are_listed_with_their_slots(submit, tmp_path):
    submit(status("done", 9, 0), 0, slots="4")
    assert (tmp_path / "run.hosts").read_text() == "n1 slots=4\nn2 slots=4\n"


def test_a_run_that_was_asked_to_stop_is_queued_again(submit, tmp_path):
    before = status("requeue", 5, 85, "earlier")
    assert submit(status("requeue", 9, 85), 85, before, asked=True)[:2] == (85, True)
    assert (tmp_path / "log.asked").exists()
    assert (tmp_path / "log.requeued").read_text() == "123\n"


def test_a_run_that_a_person_stopped_is_not_queued_again(submit):
    after = status("requeue", 9, 85, reason="bigvit stop, rank 0")
    code, requeued, said = submit(after, 85)
    assert (code, requeued) == (1, False) and "stopped by a person" in said


def test_a_run_without_an_update_in_its_time_is_not_queued_again(submit):
    before = status("requeue", 5, 85, "earlier")
    code, requeued, said = submit(status("requeue", 5, 85), 85, before)
    assert (code, requeued) == (1, False) and "no update" in said
    assert submit(status("requeue", 0, 85), 85, before)[:2] == (1, False)


def test_a_run_that_stopped_itself_ends_with_its_code(submit):
    assert submit(status("error", 9, 3), 0)[:2] == (3, False)


@pytest.mark.parametrize("before", ["", status("requeue", 5, 85), status("done", 5, 0)])
@pytest.mark.parametrize(("code", "ends"), [(2, 2), (0, 1)])
def test_a_run_that_did_not_start_is_not_judged_by_an_earlier_one(submit, before, code, ends):
    found, requeued, said = submit("", code, before)
    assert (found, requeued) == (ends, False) and "did not start" in said


def test_a_run_that_was_killed_fails_the_job_whatever_the_code(submit):
    assert submit(status("running", 9, None), 0)[:2] == (1, False)
    assert submit(status("running", 10, None), 247)[:2] == (247, False)


def test_a_wrong_command_line_is_refused():
    for words in (("digits_vit",), ("digits_vit", "--seed", "3", "--run-dir", "run")):
        done = subprocess.run(
            ["bash", ROOT / "scripts" / "slurm.sbatch", *words], capture_output=True
        )
        assert done.returncode == 2 and b"usage: sbatch" in done.stderr
