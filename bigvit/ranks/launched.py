"""What the launcher says of this process, by variables. No torch here."""

import os
import socket
from typing import NamedTuple


class Launched(NamedTuple):
    """This rank among the others; one process by itself is rank 0 of 1."""

    rank: int
    local: int  # its number on this host
    world: int  # ranks in all
    here: int | None  # ranks on this host, where the launcher says so


def launched() -> Launched:
    """What the launcher says.

    Raises:
        ValueError: a variable is no number, or one that cannot be; it is named. Or the launcher was
            asked for what means nothing here.
    """
    _check_asked()
    world = _number("WORLD_SIZE", 1, 1)
    # DeepSpeed's name for it, then torchrun's
    named = next(
        (name for name in ("LOCAL_SIZE", "LOCAL_WORLD_SIZE") if os.environ.get(name)), None
    )
    here = None if named is None else _number(named, 1, 1)
    rank = _number("RANK", 0, 0, world - 1)
    _number("MASTER_PORT", 29500, 1, 65535)
    return Launched(rank, _number("LOCAL_RANK", 0, 0, (here or world) - 1), world, here)


INSTEAD = {
    "ACCELERATE_USE_DEEPSPEED": ("--use_deepspeed", "false", "--engine deepspeed --sharding NAME"),
    "ACCELERATE_USE_FSDP": ("--use_fsdp", "false", "--engine fsdp2 --sharding NAME"),
    "ACCELERATE_MIXED_PRECISION": ("--mixed_precision", "no", "--precision NAME"),
    "ACCELERATE_DYNAMO_BACKEND": ("--dynamo_backend", "no", "--compile"),
}
"""What accelerate is asked for and says by a variable: its option, the value by which it asks for
nothing, and what asks for it here."""


def _check_asked() -> None:
    """Refuse what a launcher was asked for, and what would be done in another way in silence."""
    for name, (option, nothing, instead) in INSTEAD.items():
        if (value := os.environ.get(name, nothing)).lower() != nothing:
            raise ValueError(
                f"accelerate launch {option} ({name} is {value}) means nothing here; leave it "
                f"out, and give scripts/train.py {instead}"
            )
    # it names an address where it was asked for several processes, but no rank for the only one
    if "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_PORT" in os.environ:
        if "RANK" not in os.environ:
            raise ValueError(
                "accelerate launch was asked for several processes, and started one, as it does on "
                "CPUs; start them by accelerate launch --multi_gpu --num_processes N, which works "
                "on CPUs too (without --cpu), by torchrun or by deepspeed"
            )
    if restarts := _number("TORCHELASTIC_MAX_RESTARTS", 0, 0):
        raise ValueError(
            f"--max-restarts {restarts}: it would start again what was asked to stop, was refused, "
            "or stopped itself; leave it out, and start again by --resume auto, as "
            "scripts/supervise.sh does"
        )


def _number(name: str, default: int, low: int, high: int = 2**31 - 1) -> int:
    text = os.environ.get(name, str(default))
    if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
        raise ValueError(
            f"{name}: {text!r} is not allowed; the launcher sets it, {low} to {high}: unset "
            "it, or start by `deepspeed`, torchrun or accelerate"
        )
    return int(text)


def free_port() -> int:
    """A port of this host that nobody listens at."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]
