"""Starting things through the real launcher."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Ended:
    """A command that ended."""

    code: int
    output: str  # stdout and stderr
    seconds: float


Launch = Callable[..., Ended]


@pytest.fixture(scope="session")
def launch() -> Launch:
    """Run a script under `deepspeed` on some processes, and wait for its end."""

    def run(ranks: int, script: str | Path, *args: object, timeout: float = 240) -> Ended:
        launcher = Path(sys.executable).parent / "deepspeed"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [launcher, "--num_accelerators", ranks, "--master_port", port, script, *args]
        began = time.monotonic()
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"still running after {timeout} s: {command}\n{output}")
        return Ended(process.returncode, output, time.monotonic() - began)

    return run
