"""Ranks that no launcher ends, each a plain process or a warm one, and what becomes of them."""

import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parent.parent.parent
TINY = ("--model.embed-dim", "16", "--model.depth", "1", "--model.num-heads", "2")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def listens(pid: int) -> bool:
    """Whether a process takes signals: a rank does from our first lines on."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    (caught,) = (line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> signal.SIGUSR1 - 1 & 1)


@dataclass
class Ended:
    """How the ranks ended."""

    codes: list[int]
    output: list[str]  # of each, stdout and stderr
    seconds: float


class _Ranks(ABC):
    @abstractmethod
    def said(self) -> list[str]: ...

    def wait_until(self, rank: int, text: str, seconds: float = 60) -> None:
        """Wait until a rank has said something."""
        deadline = time.monotonic() + seconds
        while text not in self.said()[rank]:
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)


class Apart(_Ranks):
    """Ranks that a warm process forked: for what is not about their start."""

    def __init__(
        self,
        warm: Any,
        world: int,
        script: Path,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.started = warm.start(world, script, *arguments, environment=environment, apart=True)
        self.ranks = [psutil.Process(pid) for pid in self.started.ranks]

    def said(self) -> list[str]:
        return self.started.outputs

    def end(self, seconds: float) -> Ended:
        """Wait for the end of all; the time is that from now on."""
        began = time.monotonic()
        ended = self.started.wait(seconds)
        return Ended(list(ended.codes), self.said(), time.monotonic() - began)

    def kill(self) -> None:
        self.started.kill()


class ByHand(_Ranks):
    """Ranks of one host; what they start ends with them."""

    def __init__(
        self,
        world: int,
        *arguments: object,
        folder: Path,
        script: str | Path = "scripts/train.py",
        environment: Mapping[str, str] | None = None,
        only: Mapping[int, Sequence[object]] | None = None,  # more arguments, of some ranks
        through: Sequence[str] = (),  # what starts each
    ) -> None:
        self.files = [folder / f"rank_{rank}.txt" for rank in range(world)]
        common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        common |= {"MASTER_PORT": str(free_port()), **(environment or {})}
        self.ranks: list[subprocess.Popen[bytes]] = []
        for rank, file in enumerate(self.files):
            own = [*arguments, *(only or {}).get(rank, ())]
            with file.open("wb") as output:
                self.ranks.append(
                    subprocess.Popen(
                        [*through, sys.executable, str(script), *map(str, own)],
                        cwd=ROOT,
                        env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )

    def said(self) -> list[str]:
        return [file.read_text(errors="replace") for file in self.files]

    def wait_until_listening(self) -> None:
        """Wait until every rank has come to our first lines, where it takes signals."""
        while not all(listens(process.pid) for process in self.ranks):
            assert all(process.poll() is None for process in self.ranks), self.said()
            time.sleep(0.02)

    def end(self, seconds: float) -> Ended:
        """Wait for the end of all; the time is that from now on."""
        began = time.monotonic()
        try:
            for process in self.ranks:
                process.wait(max(0.1, began + seconds - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s: {self.said()}") from None
        finally:
            took = time.monotonic() - began
            self.kill()
        return Ended([process.returncode for process in self.ranks], self.said(), took)

    def kill(self) -> None:
        for process in self.ranks:
            children: Sequence[psutil.Process] = ()
            try:
                children = psutil.Process(process.pid).children(recursive=True)
            except psutil.Error:
                pass
            for each in (*children, process):
                try:
                    each.kill()
                except psutil.Error:
                    pass
            process.wait()
