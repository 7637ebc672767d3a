"""What the launcher says of this process, by variables. No torch here."""

import os
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
        ValueError: a variable is no number, or one that cannot be; it is named.
    """
    world = _number("WORLD_SIZE", 1, 1)
    # DeepSpeed's name for it, then torchrun's
    named = next(
        (name for name in ("LOCAL_SIZE", "LOCAL_WORLD_SIZE") if os.environ.get(name)), None
    )
    here = None if named is None else _number(named, 1, 1)
    rank = _number("RANK", 0, 0, world - 1)
    _number("MASTER_PORT", 29500, 1, 65535)
    return Launched(rank, _number("LOCAL_RANK", 0, 0, (here or world) - 1), world, here)


def _number(name: str, default: int, low: int, high: int = 2**31 - 1) -> int:
    text = os.environ.get(name, str(default))
    if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
        raise ValueError(
            f"{name}: {text!r} is not allowed; the launcher sets it, {low} to {high}: unset "
            "it, or start by `deepspeed` or torchrun"
        )
    return int(text)
