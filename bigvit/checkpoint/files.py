"""Files that are whole or absent: written aside, flushed to the disk, renamed; and those that grow
by whole lines."""

import json
import os
from pathlib import Path
from typing import Any

LINE = 140  # characters of JSON that are not broken up


def write_json(path: Path, value: Any) -> None:
    """Write JSON in one piece: a reader sees the old file or the new one."""
    write_bytes(path, (lines(value) + "\n").encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file in one piece, likewise."""
    aside = path.with_name(f".{path.name}.aside")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    rename(aside, path)


def lines(value: Any, indent: str = "\n") -> str:
    """JSON, with what is short on one line each."""
    line = json.dumps(value)
    if len(line) <= LINE or not isinstance(value, dict | list | tuple):
        return line
    below = f"{indent}  "
    if isinstance(value, dict):
        members = [f"{json.dumps(key)}: {lines(member, below)}" for key, member in value.items()]
    else:
        members = [lines(member, below) for member in value]
    return line[0] + below + f",{below}".join(members) + indent + line[-1]


def append(path: Path, data: bytes) -> None:
    """Add to a file all of it, or nothing.

    Raises:
        OSError: nothing could be added.
    """
    with path.open("ab", buffering=0) as file:
        end, left = file.seek(0, os.SEEK_END), memoryview(data)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            file.truncate(end)
            raise


def rename(old: Path, new: Path) -> None:
    """Rename, and make the new name survive a power cut."""
    old.rename(new)
    sync_folder(new.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
