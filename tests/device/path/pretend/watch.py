"""Where the host waits for a device, and at which line."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from pretend.build import extension

PACKAGES = {"bigvit": "ours", "deepspeed": "DeepSpeed"}
INSTALLED = "site-packages"


class Wait(NamedTuple):
    """The host waited for a device."""

    kind: str  # copy (to the device), read (of what is there), synchronize
    operation: str
    size: int  # bytes
    who: str  # ours, DeepSpeed, or others: whose line is innermost on the stack
    where: str  # FILE FUNCTION, the file within its package
    line: int


@contextmanager
def watch() -> Generator[list[Wait]]:
    """Every wait inside."""
    seen: list[Wait] = []

    def note(kind: str, operation: str, size: int) -> None:
        frame: FrameType | None = sys._getframe(1)
        place = ("others", "no Python", 0)
        while frame is not None:
            parts = Path(frame.f_code.co_filename).parts
            if INSTALLED in parts:  # maybe within a checkout, whose folder is called bigvit, too
                parts = parts[parts.index(INSTALLED) :]
            for package, who in PACKAGES.items():
                # the innermost folder of that name, below which a module lies
                if package in parts[:-1] and "tests" not in parts:
                    within = parts[len(parts) - parts[::-1].index(package) :]
                    where = f"{'/'.join(within)} {frame.f_code.co_name}"
                    place = (who, where, frame.f_lineno)
                    break
            if place[0] != "others":
                break
            frame = frame.f_back
        seen.append(Wait(kind, operation.removeprefix("aten::"), size, *place))

    extension().set_hook(note)
    try:
        yield seen
    finally:
        extension().set_hook(None)
