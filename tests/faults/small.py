"""A small run to break, how to start it through the real launcher, and what it leaves."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import torch
from safetensors import safe_open

from bigvit.checkpoint.manifest import read_manifest

ROOT = Path(__file__).parent.parent.parent
TINY = ("--model.embed-dim", "16", "--model.depth", "1", "--model.num-heads", "2")


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def start(*arguments: object, program: Sequence[str] = ("deepspeed",)) -> subprocess.Popen[str]:
    """Start a script on two ranks, in a session of its own, as `program` launches it."""
    first, *rest = program
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = [str(Path(sys.executable).with_name(first)), *rest]
    launcher += ["--num_accelerators", "2", "--master_port", str(port)]
    return subprocess.Popen(
        [*launcher, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for(path: Path, seconds: float = 120) -> None:
    """Wait until a file is there."""
    deadline = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.2)


def living(run: Path) -> list[psutil.Process]:
    """Every process, data workers included, whose command line names a run's folder."""
    found = []
    for process in psutil.process_iter():
        try:
            named = str(run) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if named and process.pid != os.getpid():
            found.append(process)
    return found


def ranks_of(run: Path) -> dict[int, psutil.Process]:
    """The ranks of a run by their number: the first of the processes that were given it."""
    found: dict[int, psutil.Process] = {}
    for process in sorted(living(run), key=lambda process: process.pid):
        for word in process.cmdline():
            if word.startswith("--local_rank="):
                found.setdefault(int(word.partition("=")[2]), process)
    return found


def state(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Every slice of a checkpoint, by its file and name."""
    slices: dict[str, torch.Tensor] = {}
    for file in read_manifest(checkpoint).files:
        with safe_open(checkpoint / file.name, framework="pt") as opened:
            slices |= {f"{file.name} {key}": opened.get_tensor(key) for key in opened.keys()}
    return slices


def differing(a: Path, b: Path) -> list[str]:
    """The slices in which two checkpoints are not the same to the bit."""
    first, second = state(a), state(b)
    assert first.keys() == second.keys() and first
    return [key for key in first if not torch.equal(first[key], second[key])]
