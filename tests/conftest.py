"""Starting things through the real launcher, or on ranks that one warm process forks."""

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent))  # each.py


@dataclass(frozen=True)
class Ended:
    """A command that ended."""

    code: int
    output: str  # stdout and stderr
    seconds: float
    codes: tuple[int | None, ...] = ()  # each rank's, where a warm process forked them


Launch = Callable[..., Ended]

TOGETHER = ("engines", "device", "gpu", "multihost")
"""Folders whose tests share launches, or the hosts: one worker of `pytest -n 3` runs all of one."""
FIRST = (
    "engines",
    "numerics",
    "gpu",
    "multihost",
    "device",
    "faults",
    "data",
    "unit",
    "recipes",
)
"""What computes stands beside what waits, and what is short evens out the end."""


class _ByFile(LoadScopeScheduling):
    """Gives a worker whole files, or folders; `--dist loadgroup` does nothing on pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        _, folder, file = nodeid.split("::")[0].split("/")
        return folder if folder in TOGETHER else f"{folder}/{file}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Part the tests among the workers."""
    config.option.loadscopereorder = False
    return _ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests by folder."""
    items.sort(key=lambda item: FIRST.index(item.path.parent.name))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests ran on two hosts, as a machine may have none."""
    of_hosts = {
        outcome: [each for each in reports if "tests/multihost/" in getattr(each, "nodeid", "")]
        for outcome, reports in terminalreporter.stats.items()
        if outcome in ("passed", "failed", "skipped", "error")
    }
    counts = ", ".join(f"{len(found)} {outcome}" for outcome, found in of_hosts.items() if found)
    if counts:
        terminalreporter.write_line(f"multihost: {counts}")


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Begin each test with the same random numbers, whichever ran before it."""
    random.seed(0)
    for name, seed in (("numpy", "random.seed"), ("torch", "manual_seed")):
        if name in sys.modules:  # what imports neither draws of neither
            attrgetter(seed)(sys.modules[name])(0)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="session")
def launch() -> Launch:
    """Run a script under `deepspeed` on some processes, and wait for its end."""

    def run(ranks: int, script: str | Path, *args: object, timeout: float = 240) -> Ended:
        launcher = (sys.executable, "-m", "deepspeed.launcher.runner")  # wherever it lies
        port = ("--master_port", free_port())
        command = [*launcher, "--num_accelerators", ranks, *port, script, *args]
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
        except BaseException as error:  # a person who interrupts the tests, too
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            pytest.fail(f"still running after {timeout} s: {command}\n{output}")
        return Ended(process.returncode, output, time.monotonic() - began)

    return run


# ranks of a warm process: warm.py has how ---------------------------------------------------------


@dataclass
class Started:
    """Ranks of one host that a warm process forked, and what stands in for their launcher."""

    launcher: int  # its process id, which is that of their session and group too
    ranks: list[int]  # their process ids
    file: Path  # of what they write
    began: float

    @property
    def output(self) -> str:
        return self.file.read_text(errors="replace")

    @property
    def outputs(self) -> list[str]:
        """Of each rank, where they are apart."""
        files = [Path(f"{self.file}.{rank}") for rank in range(len(self.ranks))]
        return [file.read_text(errors="replace") if file.exists() else "" for file in files]

    def wait(self, timeout: float = 240) -> Ended:
        """Wait until the launcher has ended; fail the test where it takes longer."""
        if not self.ended(timeout):
            self.kill()
            pytest.fail(f"still running after {timeout} s\n{self.output}")
        seconds = time.monotonic() - self.began
        said = Path(f"{self.file}.codes")
        if not said.exists():
            return Ended(-signal.SIGKILL, self.output, seconds)
        found = json.loads(said.read_text())
        return Ended(found["code"], self.output, seconds, tuple(found["ranks"]))

    def ended(self, timeout: float = 0) -> bool:
        """Whether the launcher has ended, within some seconds."""
        try:
            process = os.pidfd_open(self.launcher)
        except ProcessLookupError:
            return True
        try:
            return bool(select.select([process], [], [], timeout)[0])
        finally:
            os.close(process)

    def kill(self) -> None:
        """Kill the launcher, the ranks and their data workers, whoever is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.launcher, signal.SIGKILL)


class Warm:
    """Starts ranks as `launch` does, but for the launcher and the imports."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        """Args: environment: variables of its ranks and its own, beside this process's."""
        self.folder, self.count = folder, 0
        self.environment = {"OMP_NUM_THREADS": "1", **(environment or {})}
        command = [sys.executable, "-u", Path(__file__).with_name("warm.py"), "deepspeed"]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **self.environment, "PYTHONWARNINGS": "default"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __call__(
        self, ranks: int, script: str | Path, *args: object, timeout: float = 240
    ) -> Ended:
        return self.start(ranks, script, *args).wait(timeout)

    def start(
        self,
        ranks: int,
        script: str | Path,
        *args: object,
        cwd: Path = ROOT,
        environment: Mapping[str, str] | None = None,
        here: Sequence[int] | None = None,
        namespaces: Sequence[str] = (),
        mortal: bool = True,
        apart: bool = False,
    ) -> Started:
        """Start a script on some ranks, and go on.

        Args:
            environment: variables beside this process's own.
            here: those of the ranks that are on this host.
            namespaces: paths of a host's namespaces, which the ranks enter.
            mortal: whether ranks die with their launcher.
            apart: as without a launcher: a rank that fails ends no other, and each has an output
                of its own.
        """
        self.count += 1
        output = self.folder / f"output_{self.count}"
        port = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        given = {**os.environ, **self.environment, **port, "WORLD_SIZE": str(ranks)}
        request: dict[str, Any] = {
            "ranks": list(range(ranks)) if here is None else list(here),
            "script": str(ROOT / script),
            "arguments": [str(word) for word in args],
            "environment": {**given, **(environment or {})},
            "cwd": str(cwd),
            "output": str(output),
            "namespaces": list(namespaces),
            "mortal": mortal,
            "apart": apart,
        }
        assert self.process.stdin is not None and self.process.stdout is not None
        began = time.monotonic()
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the warm process has ended; what it said is above"
        return Started(**json.loads(line), file=output, began=began)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """Run a script on ranks that a warm process forks: for what is not about the launcher."""
    made = Warm(tmp_path_factory.mktemp("warm"))
    yield made
    made.process.kill()  # its launchers, and their ranks, die with it
    made.process.communicate()
