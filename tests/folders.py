"""Run folders and checkpoints without a training."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bigvit.checkpoint.manifest import Manifest, step_name, write_manifest
from bigvit.recipe import Recipe, Run
from bigvit.recipe.parse import Command
from bigvit.recipe.store import to_json
from bigvit.recipes.digits import digits_vit
from bigvit.training.run_folder import RunFolder


def command(recipe: Recipe = digits_vit, **run: Any) -> Command:
    return Command("digits_vit", recipe, Run(**run), ("--seed", "0"))


@contextmanager
def opened(path: Path, recipe: Recipe = digits_vit) -> Iterator[RunFolder]:
    """A run folder, until its job ends."""
    folder = RunFolder(path, command(recipe), world=2)
    try:
        yield folder
    finally:
        folder.lock.close()


def checkpoint(run: Path, update: int, recipe: Recipe = digits_vit) -> Path:
    """A checkpoint of a run, holding no tensors."""
    folder = run / "checkpoints" / step_name(update)
    folder.mkdir(parents=True)
    steps = {"optimizer_steps": update}
    write_manifest(folder, Manifest(update, update, to_json(recipe), steps, files=(), tensors=()))
    return folder


def everything(folder: Path) -> dict[str, bytes | None]:
    """All files and folders with their contents, but for locks: closing one would free it."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if path.name != "lock"
    }
