"""One checkpoint of an engine, written at once, and read back."""

from pathlib import Path
from typing import Any

from bigvit.checkpoint.load import fill, verified
from bigvit.checkpoint.manifest import Manifest
from bigvit.checkpoint.save import Saver
from bigvit.engines.engine import Engine


def save(
    engine: Engine, folder: Path, batch: int, recipe: dict[str, Any], keep: int, skipped: int = 0
) -> Path:
    """Write one checkpoint, and return when it is whole; arguments as `Saver`'s."""
    return Saver(engine, folder, recipe, keep, background=False).save(batch, skipped)


def load(engine: Engine, folder: Path) -> Manifest:
    """Fill an engine from a checkpoint, after every file was verified."""
    _, manifest = verified([folder], engine.ranks)
    fill(engine, folder, manifest)
    return manifest
