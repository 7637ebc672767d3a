"""Two hosts on one machine: network namespaces joined by a veth pair, an sshd in each.

    n1 10.77.0.1  ---  n2 10.77.0.2

They share files and processes, but not names, addresses or mounts, and are reached by ssh alone.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parent.parent.parent
NAMES = ("n1", "n2")
ADDRESSES = {"n1": "10.77.0.1", "n2": "10.77.0.2"}
PROGRAMS = {"ip": "iproute2", "sshd": "openssh-server", "ssh": "openssh-client", "pdsh": "pdsh"}
SSHD = """\
ListenAddress 0.0.0.0
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
MaxStartups 50
"""
SSH = """\
IdentityFile {folder}/key
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
"""


def missing() -> str:
    """Why hosts cannot be made here, or ''."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    packages = [package for name, package in PROGRAMS.items() if not shutil.which(name, path=path)]
    return f"Debian's {' '.join(packages)} not installed" if packages else ""


@dataclass
class Hosts:
    """A pair of hosts that live as long as this process."""

    folder: Path  # keys, configurations, hostfile; the launching shell's working folder
    link: str = field(default_factory=lambda: f"bv{os.getpid()}")
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def open(self) -> None:
        """Make the hosts and start their daemons."""
        _remove_leftovers()
        for name in ("host_key", "key"):
            key = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name)
            _do(*key)
        (self.folder / "ssh_config").write_text(SSH.format(folder=self.folder))
        (self.folder / "sshd_config").write_text(SSHD.format(folder=self.folder))
        (self.folder / "hosts").write_text("".join(f"{name} slots=1\n" for name in NAMES))
        Path("/run/sshd").mkdir(exist_ok=True)
        for name in NAMES:
            space = self._space(name)
            _do("ip", "netns", "add", space)
            own = Path("/etc/netns", space)  # what `ip netns exec` mounts over /etc
            own.mkdir(parents=True, exist_ok=True)
            lines = [f"{address} {host}" for host, address in ADDRESSES.items()]
            (own / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
            _do("ip", "-n", space, "link", "set", "lo", "up")
        ends = [f"{self.link}{name}" for name in NAMES]
        spaces = [self._space(name) for name in NAMES]
        pair = ("type", "veth", "peer", "name", ends[1], "netns", spaces[1])
        _do("ip", "link", "add", ends[0], "netns", spaces[0], *pair)
        for name, space, end in zip(NAMES, spaces, ends, strict=True):
            _do("ip", "-n", space, "addr", "add", f"{ADDRESSES[name]}/24", "dev", end)
            _do("ip", "-n", space, "link", "set", end, "up")
            self.start(name)

    def start(self, name: str) -> None:
        """Start a host's sshd."""
        own_name = f"hostname {name} && exec /usr/sbin/sshd -D -e -f {self.folder}/sshd_config"
        space = ("ip", "netns", "exec", self._space(name), "unshare", "--uts", "--mount")
        with (self.folder / f"sshd_{name}.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen([*space, "sh", "-c", own_name], stderr=log)
        deadline = time.monotonic() + 10
        ask = ["ssh", "-F", str(self.folder / "ssh_config"), name, "true"]
        while subprocess.run([*self.inside(name), *ask], capture_output=True).returncode:
            assert time.monotonic() < deadline, (self.folder / f"sshd_{name}.log").read_text()
            time.sleep(0.1)

    def stop(self, name: str) -> None:
        """End a host's sshd, and so what was started through it is all that goes on there."""
        daemon = self.daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def close(self) -> None:
        """End all that runs on the hosts, and the hosts."""
        for name in NAMES:
            space = self._space(name)
            for process in self.processes(name):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
            shutil.rmtree(Path("/etc/netns", space), ignore_errors=True)
        for daemon in self.daemons.values():
            daemon.wait()

    def inside(self, name: str) -> list[str]:
        """What comes before a command that runs on a host, as if typed there."""
        joined = ("nsenter", "-t", str(self.daemons[name].pid), "-n", "-u", "-m")
        return [*joined, "env", "-C", str(self.folder)]  # entering mounts leaves the folder

    def mount(self, name: str, *options: object) -> None:
        """`mount` on one host alone: "--bind", OTHER, FOLDER, or "-t", "tmpfs", "tmpfs", FOLDER."""
        _do(*self.inside(name), "mount", *options)

    def unmount(self, name: str, folder: Path) -> None:
        """`umount` there."""
        _do(*self.inside(name), "umount", folder)

    def processes(self, name: str) -> list[psutil.Process]:
        """All that runs on a host."""
        space = os.stat(f"/run/netns/{self._space(name)}").st_ino
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if os.stat(f"/proc/{process.pid}/ns/net").st_ino == space:
                    found.append(process)
        return found

    def ranks(self, name: str) -> list[psutil.Process]:
        """The ranks on a host, without their data workers."""
        found: list[psutil.Process] = []
        for process in self.processes(name):
            with contextlib.suppress(psutil.Error):
                words, parent = process.cmdline(), process.parent()
                is_rank = any(word.startswith("--local_rank=") for word in words)
                if is_rank and parent is not None and "launch" in " ".join(parent.cmdline()):
                    found.append(process)
        return found

    def end_ranks(self) -> list[list[str]]:
        """Kill the ranks that are left, and say what they were."""
        left = [process for name in NAMES for process in self.ranks(name)]
        _, left = psutil.wait_procs(left, timeout=5)
        commands: list[list[str]] = []
        for process in left:
            with contextlib.suppress(psutil.Error):
                commands.append(process.cmdline())
                process.kill()
        return commands

    def cut(self) -> None:
        """Take the link between the hosts away."""
        _do("ip", "-n", self._space("n2"), "link", "set", f"{self.link}n2", "down")

    def mend(self) -> None:
        """Bring the link back."""
        _do("ip", "-n", self._space("n2"), "link", "set", f"{self.link}n2", "up")

    def environment(self) -> dict[str, str]:
        """That of a shell on a host, its ssh options included."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"
        return {
            **os.environ,
            "PATH": path,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "PDSH_SSH_ARGS_APPEND": f"-F {self.folder}/ssh_config",
        }

    def popen(
        self,
        name: str,
        command: Sequence[object],
        output: Path,
        more: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command on a host, in `folder`, its output into a file."""
        with output.open("ab") as file:
            return subprocess.Popen(
                [*self.inside(name), *map(str, command)],
                env={**self.environment(), **(more or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def launcher(self, **variables: str) -> list[object]:
        """`deepspeed` over both hosts, to be run on n1, with variables that its ranks get."""
        self.export(**variables)
        address = ("--master_addr", ADDRESSES["n1"], "--master_port", free_port())
        return ["deepspeed", "--hostfile", "hosts", *address, "--no_ssh_check"]

    def warm(
        self, warm: Any, script: Path, *args: object, each: int = 1, **variables: str
    ) -> "Warmed":
        """Ranks on each host, forked by the warm process in the place of pdsh, ssh and imports."""
        meeting = {"MASTER_ADDR": ADDRESSES["n1"], "MASTER_PORT": str(free_port())}
        started: dict[str, Any] = {}
        for host, name in enumerate(NAMES):
            spaces = [f"/proc/{self.daemons[name].pid}/ns/{kind}" for kind in ("net", "uts", "mnt")]
            started[name] = warm.start(
                each * len(NAMES),
                script,
                *args,
                here=list(range(each * host, each * (host + 1))),
                cwd=self.folder,
                environment={**self.environment(), **meeting, **variables},
                namespaces=spaces,
            )
        return Warmed(started)

    def export(self, **more: str) -> None:
        """Write .deepspeed_env, which carries variables to every host."""
        environment = {**self.environment(), **more}  # the file is read as it is
        names = ("PATH", "PYTHONPATH", "OMP_NUM_THREADS", *more)
        lines = [f"{name}={environment[name]}\n" for name in names]
        (self.folder / ".deepspeed_env").write_text("".join(lines))

    def _space(self, name: str) -> str:
        return f"{self.link}{name}"


@dataclass
class Warmed:
    """Ranks that a warm process forked, by their hosts."""

    on: dict[str, Any]

    @property
    def output(self) -> str:
        """What they say, each line after its host's name, as pdsh has it."""
        lines = [(n, line) for n, each in self.on.items() for line in each.output.splitlines()]
        return "".join(f"{name}: {line}\n" for name, line in lines)

    def rank(self, name: str) -> psutil.Process:
        """The rank on a host."""
        return psutil.Process(self.on[name].ranks[0])

    def seconds_to_end(self, name: str, began: float, limit: float) -> float:
        """How long a host's rank took to end, or the limit."""
        self.on[name].ended(max(0.0, began + limit - time.monotonic()))
        return time.monotonic() - began

    def wait(self, seconds: float) -> list[int]:
        """Each host's exit code."""
        return [each.wait(seconds).code for each in self.on.values()]


def free_port() -> int:
    """A port that was free a moment ago, and so is most likely free on the hosts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit code of a process, or None where it takes longer than that."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    """A pair of hosts, and its end."""
    hosts = Hosts(folder)
    try:
        hosts.open()
        yield hosts
    finally:
        hosts.close()


def _do(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True)


def _remove_leftovers() -> None:
    """Namespaces outlive a killed test run; those of dead ones go."""
    spaces = Path("/run/netns")
    for space in spaces.iterdir() if spaces.is_dir() else ():
        found = re.fullmatch(r"bv(\d+)n\d", space.name)
        if found and not psutil.pid_exists(int(found[1])):
            subprocess.run(["ip", "netns", "del", space.name], capture_output=True)
            shutil.rmtree(Path("/etc/netns", space.name), ignore_errors=True)
