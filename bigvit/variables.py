"""Writing .deepspeed_env, which carries variables to every host. No torch here."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import psutil

from bigvit.hosts import environment_files

NAMES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "OMP_NUM_THREADS")
NAMES += ("DS_ACCELERATOR",)
BEGINNINGS = ("HF_", "NCCL_", "GLOO_", "UCX_", "TORCH_")
SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|KEY$")  # lists of processes show what is carried
UNFIT = re.compile(r"""[\n\r"$`\\%]""")  # a shell between double quotes, or pdsh, reads on


def write_variables(given: Sequence[str], interface: str | None) -> tuple[Path, list[str]]:
    """Write what is set here and matters there, and what is given, for DeepSpeed's launcher; lines
    of other variables stay.

    Args:
        given: NAME=VALUE each.
        interface: the network that gloo and NCCL are to use, as it is called on every host.

    Returns:
        The file and its lines.

    Raises:
        ValueError: a name or value cannot be carried, or there is no such interface.
    """
    path = environment_files()[-1]
    lines = path.read_text().splitlines() if path.is_file() else []
    variables = dict(line.split("=", 1) for line in lines if "=" in line)
    for name, value in sorted(os.environ.items()):
        if value and (name in NAMES or name.startswith(BEGINNINGS)) and not SECRET.search(name):
            variables[name] = value
    if interface is not None:
        if interface not in (there := psutil.net_if_addrs()):
            raise ValueError(f"--interface {interface}: there are {', '.join(there)} here")
        variables |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ValueError(f"{text!r} is not NAME=VALUE")
        variables[name] = value
    for name, value in variables.items():
        if (unfit := UNFIT.search(value)) or value != value.strip():
            what = f"a {unfit[0]!r}" if unfit else "a blank at an end"
            raise ValueError(
                f"{name}={value!r} cannot be carried: {path.name} has no way to write {what}; "
                "change it here, or set it in the shell's profile on every host"
            )
    lines = [f"{name}={value}" for name, value in variables.items()]
    aside = path.with_name(f"{path.name}.aside")
    aside.write_text("".join(f"{line}\n" for line in lines))
    aside.rename(path)
    return path, lines
