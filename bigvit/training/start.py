"""Where a run begins: from nothing, or from a checkpoint that is whole. No torch here."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigvit.checkpoint import metrics
from bigvit.checkpoint.manifest import STEP, read_manifest
from bigvit.checkpoint.run import Found, checkpoints_of, find_checkpoints, run_of
from bigvit.checkpoint.skipped import parse_batches, words
from bigvit.recipe import Command
from bigvit.recipe.store import differences, filled, is_named, to_json
from bigvit.recipe.words import read_json
from bigvit.training.run_folder import OURS


class Refused(ValueError):
    """A run that differs from what it would go on from."""


@dataclass(frozen=True)
class Start:
    """Where a run begins."""

    folder: Path  # the run folder
    checkpoint: Path | None  # what it goes on from; None: from the initial weights
    older: tuple[Path, ...] = ()  # what to go back to where that proves damaged, newest first
    damaged: tuple[str, ...] = ()  # what is wrong with newer ones


def folder_of(command: Command, home: Path | None = None) -> Path:
    """The run folder of a command that goes on with the run in `home`, if with any."""
    return command.run.run_dir or home or Path("runs") / command.name


def _home(named: str | None) -> Path | None:
    """The run folder of what `--resume` names, where that was not copied elsewhere."""
    if named is None:
        return None
    path = Path(named)
    home = run_of(path) if STEP.fullmatch(path.name) else path.resolve()
    return home if (home / "recipe.json").is_file() else None


def plan_start(command: Command, judge: bool = True) -> Start:
    """Decide where a run begins, changing nothing.

    Args:
        judge: whether to read checkpoints, as rank 0 does. The others, who would all read the same,
            are told by it later which one is taken: here theirs is the newest there is, unread.

    Raises:
        ValueError: the folder or checkpoint is not fit for this run; nothing was touched.
    """
    run, resume = command.run, command.run.resume
    recipe, allowed = to_json(command.recipe), run.allow_change
    never = parse_batches(run.skip_batches) if run.skip_batches is not None else ()
    if never and (last := never[-1]) > (most := command.recipe.updates):
        raise ValueError(f"--skip-batches: {last} is none of the recipe's {most} batches")
    named = None if resume == "auto" else resume
    found = _named(named) if named is not None and judge else Found((), ())
    home = _home(named)
    folder = folder_of(command, home)
    checkpoints: list[Path] = []
    if folder.exists():
        _refuse_foreign(folder, recipe, allowed)
        checkpoints = checkpoints_of(folder)
        holds_run = checkpoints or (folder / metrics.NAME).exists()
        if holds_run and (resume is None or (named is not None and home != folder.resolve())):
            raise ValueError(
                f"{folder} holds a run already; go on with it by --resume auto, "
                "or choose another --run-dir"
            )
        if checkpoints and judge:
            own = _named(str(folder), resume)
            if resume == "auto":
                found = own
            if found.whole[0].name != own.whole[0].name:
                raise ValueError(
                    f"{folder} holds newer checkpoints than {found.whole[0].name}; go on from the "
                    "newest by --resume auto, or branch off into another --run-dir"
                )
    checkpoint = found.whole[0] if found.whole else None
    if checkpoint:
        manifest = read_manifest(checkpoint)
        where = f"--resume {resume}: {checkpoint}"
        refuse_changes(
            filled(manifest.recipe), recipe, allowed, f"{where} holds a run of another recipe"
        )
        if past := {n for n in never if n <= manifest.batch} - {*manifest.skipped_batches}:
            raise ValueError(
                f"--skip-batches {run.skip_batches}: {checkpoint} was trained on {words([*past])} "
                "already; go on from an older checkpoint by its path, in another --run-dir"
            )
        if (stop := run.stop_after) is not None and stop <= manifest.batch:
            raise ValueError(f"--stop-after {stop}: {checkpoint} is at {manifest.batch} already")
    if (stop := run.stop_after) is not None and stop > command.recipe.updates:
        raise ValueError(f"--stop-after {stop}: the recipe has {command.recipe.updates} updates")
    _refuse_unwritable(folder)
    if not judge and (named or checkpoints):
        checkpoint = Path(named) if named else checkpoints[-1]
    return Start(folder, checkpoint, found.whole[1:], found.damaged)


def _named(path: str, resume: str | None = None) -> Found:
    """What `--resume` names."""
    try:
        return find_checkpoints(Path(path))
    except ValueError as error:
        raise ValueError(f"--resume {resume or path}: {error}; {WAY_OUT}") from None


WAY_OUT = "go on from another checkpoint by its path, or start anew in another --run-dir"


def _refuse_foreign(folder: Path, recipe: dict[str, Any], allowed: Sequence[str]) -> None:
    if not folder.is_dir():
        raise ValueError(f"--run-dir {folder}: it is not a folder")
    described, fault = folder / "recipe.json", ""
    if not described.exists():
        if strangers := sorted(path.name for path in folder.iterdir() if path.name not in OURS):
            fault = f"it holds files that are not a run's ({strangers[0]})"
        elif checkpoints_of(folder):
            fault = "it holds checkpoints but its recipe.json is missing"
        if fault:
            raise ValueError(f"--run-dir {folder}: {fault}; choose another")
        return
    try:
        old = read_json(described)["recipe"]
        if not isinstance(old, dict):
            raise TypeError("recipe is not an object")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"--run-dir {folder}: its recipe.json is damaged ({type(error).__name__}: {error}); "
            "choose another"
        ) from None
    refuse_changes(
        filled(old), recipe, allowed, f"--run-dir {folder} holds a run of another recipe"
    )


def given_to(folder: Path, what: str) -> str | None:
    """The digest of what the run in a folder began with ("teacher", "label_maps"), where its
    recipe.json says one."""
    described = folder / "recipe.json"
    return read_json(described).get(what) if described.exists() else None


def refuse_changes(old: Any, new: Any, allowed: Sequence[str], what: str) -> None:
    """Raise Refused where a run differs from what it goes on from, but in fields (each with all
    below it) that may differ."""
    changed = [line for line in differences(old, new) if not is_named(line, allowed)]
    if changed:
        shown = "\n  ".join(changed[:12])
        raise Refused(
            f"{what}:\n  {shown}\nuse the run's own recipe, overrides and data, allow it by "
            f"--allow-change {changed[0].split(':')[0]}, or choose another --run-dir"
        )


def _refuse_unwritable(folder: Path) -> None:
    # a link that leads nowhere is there
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"--run-dir {folder}: {there} cannot be written to; choose another")
