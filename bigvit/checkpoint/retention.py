"""Which checkpoints stay. A folder is renamed before it is emptied, so that none is ever seen half
removed. No torch here."""

import re
import shutil
from pathlib import Path

from bigvit.checkpoint.files import rename
from bigvit.checkpoint.manifest import Damaged, batch_of, checkpoints_in, read_manifest

ASIDE = re.compile(r"\.step_\d{8}\..*aside|\.step_\d{8}\.aside")


def prune(folder: Path, keep: int, keep_every: int | None = None) -> None:
    """Remove checkpoints, oldest first, but never one of the newest `keep` that are whole, nor a
    whole one at a multiple of `keep_every` batches."""
    found = checkpoints_in(folder)
    whole = [path for path in found if is_whole(path)]
    if len(whole) <= keep:
        return
    for path in found[: found.index(whole[-keep])]:
        if path not in whole or not keep_every or batch_of(path) % keep_every:
            discard(path)


def is_whole(path: Path) -> bool:
    """Whether a checkpoint's manifest is sound and all its files have their length."""
    try:
        read_manifest(path)
    except Damaged:
        return False
    return True


def discard(path: Path) -> None:
    """Remove a checkpoint."""
    aside = path.with_name(f".{path.name}.removed.aside")
    shutil.rmtree(aside, ignore_errors=True)
    rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what jobs that were killed left half written or half removed."""
    for path in folder.glob(".step_*"):
        if ASIDE.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
