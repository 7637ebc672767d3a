"""A rank of the warm process is as new, and ends as under DeepSpeed's launcher."""

import signal

import psutil

SCRIPT = """\
import os, sys, threading, time
names = ("RANK", "LOCAL_RANK", "LOCAL_SIZE", "WORLD_SIZE", "GREETING")
print(*sys.argv, os.getcwd(), *map(os.environ.get, names), threading.active_count(), flush=True)
if os.environ["RANK"] == "1":
    sys.exit(7)
time.sleep(60)
"""


def test_what_a_rank_is_given_and_how_one_that_fails_ends_the_others(warm, tmp_path):
    script = tmp_path / "say.py"
    script.write_text(SCRIPT)
    started = warm.start(3, script, "a", "b c", cwd=tmp_path, environment={"GREETING": "hello"})
    done = started.wait(20)
    assert sorted(done.output.splitlines()) == [
        f"{script} --local_rank={rank} a b c {tmp_path} {rank} {rank} 3 3 hello 1"
        for rank in range(3)
        if f"--local_rank={rank}" in done.output  # one may be ended before it speaks
    ]
    assert (done.code, done.codes) == (7, (-signal.SIGTERM, 7, -signal.SIGTERM))


def test_ranks_die_with_their_launcher_unless_they_are_to_be_orphans(warm, tmp_path):
    script = tmp_path / "sleep.py"
    script.write_text("import time\ntime.sleep(60)\n")
    for mortal in (True, False):
        started = warm.start(2, script, mortal=mortal)
        ranks = [psutil.Process(pid) for pid in started.ranks]
        psutil.Process(started.launcher).kill()
        assert started.wait(20).code == -signal.SIGKILL
        _, alive = psutil.wait_procs(ranks, timeout=5 if mortal else 0.5)
        assert len(alive) == (0 if mortal else 2)
        started.kill()
        assert psutil.wait_procs(ranks, timeout=5)[1] == []


def test_a_crash_is_code_1_with_its_traceback(warm, tmp_path):
    script = tmp_path / "crash.py"
    script.write_text("raise KeyError('here')\n")
    done = warm(1, script)
    assert done.code == 1 and "Traceback" in done.output and "KeyError: 'here'" in done.output
