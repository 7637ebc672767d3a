"""Which checkpoints stay. A folder is renamed before it is emptied, so that none is ever seen half
removed. No torch here."""

import re
import shutil
from itertools import islice
from pathlib import Path

from bigvit.checkpoint.files import rename
from bigvit.checkpoint.manifest import batch_of, checkpoints_in, damage

ASIDE = re.compile(r"\.step_\d{8}\..*aside")


def prune(folder: Path, keep: int, keep_every: int | None = None) -> None:
    """Remove what is older than the newest `keep` checkpoints that are whole, but for those at a
    multiple of `keep_every` batches. Older ones are not read."""
    newest = iter(reversed(checkpoints_in(folder)))
    whole = (path for path in newest if not damage(path))
    for _ in islice(whole, keep):
        pass
    for path in newest:
        if not keep_every or batch_of(path) % keep_every:
            discard(path)


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
