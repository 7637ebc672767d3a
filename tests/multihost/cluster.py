"""A Slurm of two nodes on one machine: munged, slurmctld and two slurmd, all in one folder."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = {"munged": "munge", "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm"}
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
CONF = """\
ClusterName=bigvit
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
SchedulerParameters=batch_sched_delay=1,sched_interval=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={one} CPUs=1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={two} CPUs=1
PartitionName=all Nodes=ALL Default=YES MaxTime=60 OverTimeLimit=1
"""


def missing() -> str:
    """Why Slurm cannot run here, or ''."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    absent = {package for name, package in PROGRAMS.items() if not shutil.which(name, path=PATH)}
    return f"Debian's {' '.join(sorted(absent))} not installed" if absent else ""


@dataclass
class Cluster:
    """Slurm's daemons, which end with it."""

    folder: Path
    daemons: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def open(self) -> None:
        """Start the daemons, and wait for both nodes."""
        munge, host = self.folder / "munge", socket.gethostname().split(".")[0]
        for folder in (munge, self.folder / "state"):
            folder.mkdir(mode=0o755)
        (munge / "key").touch(mode=0o600)
        (munge / "key").write_bytes(os.urandom(1024))
        port, one, two = _free_ports(3)
        text = CONF.format(folder=self.folder, host=host, port=port, one=one, two=two)
        (self.folder / "slurm.conf").write_text(text)
        files = {name: munge / name for name in ("socket", "pid", "log", "seed")}
        places = [f"--{name}={files[name.split('-')[0]]}" for name in ("socket", "pid-file")]
        places += [f"--log-file={files['log']}", f"--seed-file={files['seed']}"]
        self._start("munged", "--foreground", "--force", f"--key-file={munge / 'key'}", *places)
        _wait_for(files["socket"].exists, "munged")
        self._start("slurmctld", "-D", "-c")
        for name in ("n1", "n2"):
            self._start("slurmd", "-D", "-N", name)
        _wait_for(
            lambda: self.ask("sinfo", "-h", "-N", "-o", "%t").split() == ["idle"] * 2, "sinfo"
        )

    def close(self) -> None:
        """End every job and daemon, and all that they left."""
        with contextlib.suppress(subprocess.SubprocessError):
            self.ask("scancel", "--user=root")
            self.ask("scancel", "--user=root", "--signal=KILL", "--full")
            _wait_for(lambda: not self.ask("squeue", "-h"), "squeue", 20)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        for daemon in self.daemons:
            daemon.wait()

    def ask(self, *command: str) -> str:
        """What one of Slurm's commands says."""
        done = subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, timeout=30, cwd=ROOT
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout.strip()

    def submit(self, *arguments: object) -> str:
        """Queue a job over both nodes, and say its number."""
        words = map(str, arguments)
        return self.ask("sbatch", "--parsable", "--nodes=2", *words)

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows of a job."""
        words = self.ask("scontrol", "show", "job", "-o", number).split()
        pairs = (word.partition("=") for word in words)
        return {name: value for name, _, value in pairs}

    def environment(self) -> dict[str, str]:
        """That of a user of the cluster, in a checkout whose environment is active."""
        more = {"SLURM_CONF": f"{self.folder}/slurm.conf", "PATH": PATH, "OMP_NUM_THREADS": "1"}
        return {**os.environ, **more, "BIGVIT_VENV": sys.prefix, "PYTHONPATH": str(ROOT)}

    def processes(self) -> list[psutil.Process]:
        """The daemons, and all that runs in their jobs."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                named = f"{self.folder}/slurm.conf" == process.environ().get("SLURM_CONF")
                if named and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _start(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("ab") as output:
            self.daemons.append(
                subprocess.Popen(
                    command,
                    env=self.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )


@contextlib.contextmanager
def two_nodes(folder: Path) -> Iterator[Cluster]:
    """A cluster, and its end."""
    cluster = Cluster(folder)
    try:
        cluster.open()
        yield cluster
    finally:
        cluster.close()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in free:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in free]


def _wait_for(there, what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(what, seconds)
        time.sleep(0.2)
