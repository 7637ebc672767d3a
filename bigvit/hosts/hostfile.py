"""The hosts of a run: the file that lists them, the variables they are given, and running a command
on all of them by ssh. No torch here."""

import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

CONNECT = 10  # seconds that ssh may take to connect
EXPORTED = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL")  # what DeepSpeed carries along by itself
PLAIN = re.compile(r"[\w@%+=:,./-]*")  # what it carries without quotes
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)  # of a variable, as shells have them
HOST = re.compile(  # a name or an address
    r"(\w[\w.-]*@)?([A-Za-z0-9][\w.-]*|[\dA-Fa-f]*(:[\dA-Fa-f.]*){2,7})", re.ASCII
)


@dataclass(frozen=True)
class Done:
    """A command that ended on a host, or was ended."""

    code: int | None  # its exit code; 255 where ssh failed; None: it took too long, and was killed
    output: str
    error: str
    began: float = field(default=0.0, compare=False)  # by the clock here
    ended: float = field(default=0.0, compare=False)


def read_hostfile(path: Path) -> dict[str, int]:
    """The slots of every host, in the order of a DeepSpeed hostfile: lines `HOST slots=N`.

    Raises:
        ValueError: it cannot be read, or a line is not of that form.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--hostfile {path} cannot be read: {error}") from None
    slots: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        found = re.match(r"(\S+)\s+slots=([0-9]{1,4})(\s|$)", line)
        if found is None or int(found[2]) < 1:
            raise ValueError(
                f"--hostfile {path}, line {number}: {line[:80]!r} is not HOST slots=N, with N the "
                "number of GPUs to use there"
            )
        check_host(found[1], f"--hostfile {path}, line {number}")
        if found[1] in slots:
            raise ValueError(f"--hostfile {path}, line {number}: {found[1]} is there already")
        slots[found[1]] = int(found[2])
    if not slots:
        raise ValueError(f"--hostfile {path} names no host; write a line HOST slots=N for each")
    return slots


def check_host(host: str, where: str) -> None:
    """Refuse what ssh, pdsh or a shell would take for something else than a host.

    Raises:
        ValueError: says where it stands.
    """
    if not HOST.fullmatch(host):
        raise ValueError(
            f"{where}: {host!r} is not the name or address of a host; a name has letters, digits, "
            "'.', '-' and '_', begins with a letter or digit, and USER@ may stand before it"
        )


def environment_files() -> list[Path]:
    """Where DeepSpeed looks for variables, in its order: what comes later counts."""
    name = os.environ.get("DS_ENV_FILE", ".deepspeed_env")
    return [Path.home() / name, Path(name)]


def import_path(text: str) -> str:
    """A PYTHONPATH without its empty entries, which mean the current folder."""
    return ":".join(entry for entry in text.split(":") if entry not in ("", "."))


def carried() -> dict[str, str]:
    """The variables that DeepSpeed's launcher sets on every host, but for the current folder, which
    it puts before PYTHONPATH: what happens to lie there is not to be imported.

    Raises:
        ValueError: a line of .deepspeed_env is not NAME=VALUE.
    """
    names = [name for name in os.environ if name.startswith(EXPORTED) and NAME.fullmatch(name)]
    variables = {name: os.environ[name] for name in names} | in_files()
    variables["PYTHONPATH"] = import_path(variables.get("PYTHONPATH", ""))
    return variables


def in_files(paths: Iterable[Path] | None = None) -> dict[str, str]:
    """The variables of DeepSpeed's files, or of these.

    Raises:
        ValueError: a line is not NAME=VALUE.
    """
    variables: dict[str, str] = {}
    for path in environment_files() if paths is None else paths:
        if not path.is_file():
            continue
        with path.open() as lines:
            for number, line in enumerate(lines, 1):
                name, equals, value = line.partition("=")
                if not equals or not NAME.fullmatch(name.strip()):
                    raise ValueError(  # without the value: it may be a secret
                        f"{path}, line {number}: {name.strip()!r} is not NAME=VALUE; DeepSpeed "
                        "takes no comments and no empty lines there"
                    )
                variables[name.strip()] = value.strip()
    return variables


def run_on(
    hosts: Sequence[str],
    command: Sequence[str] | Mapping[str, Sequence[str]],
    seconds: float,
    ssh_port: int | None = None,
) -> dict[str, Done]:
    """Run a command on every host at once, in this folder and with the variables that DeepSpeed
    would set there, and wait for all. It is killed where it takes longer than that.

    PDSH_SSH_ARGS_APPEND is given to ssh as pdsh gives it, so that both reach the same hosts.

    Args:
        command: one for all hosts, or one each.

    Raises:
        ValueError: .deepspeed_env cannot be read, or there is no ssh.
    """
    ssh = ["ssh", *os.environ.get("PDSH_SSH_ARGS_APPEND", "").split()]
    ssh += ["-x", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT}"]
    ssh += [] if ssh_port is None else ["-p", str(ssh_port)]
    exports = [f"export {name}={_quoted(value)};" for name, value in carried().items()]
    where = ["cd", shlex.quote(os.getcwd()), "&&", "exec"]

    def run(host: str) -> Done:
        own = command[host] if isinstance(command, Mapping) else command
        line = " ".join([*exports, *where, shlex.join(_limited(own, seconds))])
        return _run([*ssh, host, line], seconds, CONNECT + 10)

    with ThreadPoolExecutor(max(1, len(hosts))) as pool:
        return dict(zip(hosts, pool.map(run, hosts), strict=True))


def run_here(command: Sequence[str], seconds: float) -> Done:
    """Run a command on this machine, without ssh."""
    own = {**os.environ, "PYTHONPATH": import_path(os.environ.get("PYTHONPATH", ""))}
    return _run(_limited(command, seconds), seconds, 10, own)


def _limited(command: Sequence[str], seconds: float) -> list[str]:
    """A command that ends in time by itself: ssh, when it is killed, leaves what it started."""
    return ["timeout", "-k", "5", str(seconds), *command]


def _run(
    command: Sequence[str], seconds: float, more: float, own: Mapping[str, str] | None = None
) -> Done:
    began = time.time()
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds + more,
            env=own,
        )
    except FileNotFoundError:
        raise ValueError(f"there is no {command[0]} here; install it") from None
    except subprocess.TimeoutExpired:
        return Done(None, "", f"no answer within {seconds + more:g} s", began, time.time())
    ended = time.time()
    late = done.returncode in (124, 137) and ended - began >= seconds
    code = None if late else done.returncode
    return Done(code, done.stdout, done.stderr, began, ended)


def _quoted(value: str) -> str:
    """A value as DeepSpeed writes it into the command line of a host's shell."""
    return value if PLAIN.fullmatch(value) else f'"{value}"'
