"""Which checkpoints stay. A folder is renamed before it is emptied, so that none is ever seen half
removed. Of a checkpoint that is a link, the link goes alone: what it leads to is its owner's. No
torch here."""

import re
import shutil
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from bigvit.checkpoint.files import rename, sync_folder
from bigvit.checkpoint.manifest import batch_of, checkpoints_in, damage, step_name
from bigvit.checkpoint.skipped import read_skipped, superseded

ASIDE = re.compile(r"\.step_\d{8}\..*aside")


def prune(
    folder: Path, keep: int, keep_every: int | None = None, best: Sequence[int] = ()
) -> dict[Path, str]:
    """Remove what is older than the newest `keep` checkpoints that are whole, but for those at a
    multiple of `keep_every` batches. Older ones are not read.

    Args:
        best: batches, the best first: of the checkpoints there the first that is whole stays.

    Returns:
        What could not be removed, or looked at, and why: that harms no other checkpoint.
    """
    stuck = discard_superseded(folder)
    try:
        newest = iter([path for path in reversed(checkpoints_in(folder)) if path not in stuck])
        whole = (path for path in newest if not damage(path))
        for _ in islice(whole, keep):
            pass
        there = (folder / step_name(batch) for batch in best)
        kept = next((path for path in there if path.is_dir() and not damage(path)), None)
    except OSError as error:
        return {folder: f"{folder}: old checkpoints cannot be looked for ({error})"}
    for path in newest:
        if path != kept and (not keep_every or batch_of(path) % keep_every):
            try:
                discard(path)
            except OSError as error:
                stuck[path] = f"{path} is old, and cannot be removed ({error})"
    return stuck


def discard_superseded(folder: Path) -> dict[Path, str]:
    """Remove the checkpoints that a run went back past, so that none of them counts.

    Returns:
        What could not be removed, and why.
    """
    stuck: dict[Path, str] = {}
    try:
        batches = read_skipped(folder.parent).batches
        found = checkpoints_in(folder) if batches else []
    except (OSError, ValueError) as error:
        return {folder: f"{folder}: what the run went back past cannot be looked for ({error})"}
    for path in found:
        if superseded(path, batches):
            try:
                discard(path)
            except OSError as error:
                stuck[path] = f"the run went back past {path}, which cannot be removed ({error})"
    return stuck


def discard(path: Path) -> None:
    """Remove a checkpoint.

    Raises:
        OSError: it cannot be, and is as it was.
    """
    if path.is_symlink():
        path.unlink()
        sync_folder(path.parent)
        return
    aside = path.with_name(f".{path.name}.removed.aside")
    _remove(aside)
    rename(path, aside)
    _remove(aside)


def remove_leftovers(folder: Path) -> None:
    """Remove what jobs that were killed left half written or half removed."""
    for path in folder.glob(".step_*"):
        if ASIDE.fullmatch(path.name):
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a folder as far as that goes, or a link to one."""
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)
