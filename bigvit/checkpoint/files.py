"""Files that are whole or absent: written aside, flushed to the disk, renamed."""

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Write JSON in one piece: a reader sees the old file or the new one."""
    aside = path.with_name(f".{path.name}.aside")
    with aside.open("w") as file:
        file.write(json.dumps(value, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    rename(aside, path)


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
