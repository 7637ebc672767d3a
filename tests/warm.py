"""One process that has imported all that a rank needs, and forks ranks where it is asked to.

    python -u tests/warm.py deepspeed     # the word makes it a launcher to `bigvit.ranks.stopping`

It reads one request a line, each a JSON, and forks for each what stands in for DeepSpeed's
launcher: it forks the ranks of one host, writes a line with their process ids, and ends as the
launcher does: with the first code that is not 0, after it ended the ranks that were left. Nothing
runs but one thread, as a fork has only that; a rank's process is otherwise as new: its arguments,
environment, folder, output and signals are those that the launcher would have given it.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

GRACE = 30.0  # seconds between TERM and KILL, DeepSpeed's
PR_SET_PDEATHSIG = 1
MODULES = (
    "bigvit.training.same_hosts",
    "bigvit.engines.deepspeed.engine",
    "bigvit.engines.single",
    "bigvit.ranks.watching",
    "bigvit.export.folder",
    "bigvit.training.loop",
    "bigvit.train",
    "deepspeed.runtime.zero.muon.original_muon",
    "sklearn.datasets",
    "timm.optim.lamb",
    "torch._inductor.compile_fx",
    "torch.utils.tensorboard",
)


def serve() -> None:
    """Fork a launcher for each request, until nobody is left to ask."""
    _end_with_parent()
    _import_all()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for launchers
    for line in sys.stdin:
        request = json.loads(line)
        threads = os.listdir("/proc/self/task")
        assert len(threads) == 1, f"a fork would lose threads: {threads}"
        if os.fork() == 0:
            _launch(request)


def _import_all() -> None:
    """What a rank imports, at its start and late, with no thread: pandas' allocator has one."""
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed looks when it is imported
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # pages that stay shared


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _launch(request: dict[str, Any]) -> NoReturn:
    """Be the launcher of one host: fork its ranks, and end with them."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    _end_with_parent()
    parent = os.dup(1)
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for mine, given in ((0, nothing), (1, output), (2, output)):
        os.dup2(given, mine)
    _enter(request["namespaces"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    ranks: dict[int, int] = {}
    launcher = os.getpid()
    for local, rank in enumerate(request["ranks"]):
        pid = os.fork()
        if pid == 0:
            os.close(parent)
            _be_rank(request, rank, local, launcher)
        ranks[pid] = rank
    os.write(parent, json.dumps({"launcher": launcher, "ranks": list(ranks)}).encode() + b"\n")
    os.close(parent)
    codes: dict[int, int] = {}
    code = 0

    def end(number: int, _: object) -> NoReturn:
        """As DeepSpeed's launcher ends: first the ranks that are left."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _end_all([pid for pid in ranks if pid not in codes], codes)
        _leave(code or 1)

    def _leave(code: int) -> NoReturn:
        said = {"code": code, "ranks": [codes.get(pid) for pid in ranks]}
        Path(f"{request['output']}.codes").write_text(json.dumps(said))
        os._exit(code & 0xFF)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    while len(codes) < len(ranks):
        pid, status = os.wait()
        if pid in ranks:
            codes[pid] = os.waitstatus_to_exitcode(status)
            if (code := codes[pid]) and not request["apart"]:
                end(signal.SIGTERM, None)
    _leave(0)


def _end_all(pids: list[int], codes: dict[int, int]) -> None:
    deadline = time.monotonic() + GRACE
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    while left := [pid for pid in pids if pid not in codes]:
        for pid in left:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _be_rank(request: dict[str, Any], rank: int, local: int, launcher: int) -> NoReturn:
    """Run the script as `__main__`, and end."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["mortal"]:
        _end_with_parent()
        if os.getppid() != launcher:  # it ended before
            os._exit(1)
    if request["apart"]:
        own = os.open(f"{request['output']}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(own, 1)
        os.dup2(own, 2)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(local), LOCAL_SIZE=str(len(request["ranks"])))
    script = request["script"]
    sys.argv = [script, f"--local_rank={local}", *request["arguments"]]
    sys.path[0] = str(Path(script).parent)
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _enter(namespaces: list[str]) -> None:
    """Go to another host: the paths of its namespaces."""
    libc = ctypes.CDLL(None, use_errno=True)
    for path in namespaces:
        with open(path) as namespace:
            if libc.setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"setns {path}")


if __name__ == "__main__":
    serve()
