"""What others read of a run folder: its checkpoints, and its classes. No torch here."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from bigvit.checkpoint.best import SUFFIX, metric_of, ranked, scores
from bigvit.checkpoint.manifest import STEP, checkpoints_in, damage, read_manifest, step_name
from bigvit.checkpoint.skipped import read_skipped, superseded
from bigvit.recipe.words import read_json

log = logging.getLogger(__name__)
CLASSES = "classes.json"  # names of the classes, in a run folder
CLASSES_MAP = "classes_map.json"  # a coarser class of each, in that of a run that was given them
MOST = 16  # checkpoints that a run looks at for a whole one


def checkpoints_of(folder: Path) -> list[Path]:
    """A run's checkpoints, oldest first, but for those that it went back past.

    Raises:
        ValueError: what it skips is damaged.
    """
    batches = read_skipped(folder).batches
    found = checkpoints_in(folder / "checkpoints")
    return [path for path in found if not superseded(path, batches)]


def run_of(checkpoint: Path) -> Path:
    """The run folder that a checkpoint lies in, if it was not copied elsewhere."""
    return checkpoint.resolve().parent.parent


@dataclass(frozen=True)
class Found:
    """Checkpoints at a path."""

    whole: tuple[Path, ...]  # their files have their length; the newest few, newest first
    damaged: tuple[str, ...]  # what is wrong with those newer than all of these


def find_checkpoints(path: Path, most: int = MOST) -> Found:
    """The checkpoint at a path, or the newest of the run folder there; of RUN@best its best.

    Raises:
        ValueError: it is neither, or no checkpoint there is whole.
    """
    if STEP.fullmatch(path.name) and path.is_dir():
        read_manifest(path)
        return Found((path,), ())
    if (run := run_named(path)) is not None:
        return Found((best_checkpoint(run),), ())
    if not path.is_dir():
        raise ValueError(f"there is no run folder or checkpoint {path}")
    if not (path / "recipe.json").is_file():
        raise ValueError(f"{path} is neither a run folder nor a checkpoint of bigvit")
    while True:
        whole: list[Path] = []
        damaged: list[str] = []
        gone = False
        for checkpoint in reversed(checkpoints_of(path)):
            if len(whole) == most:
                break
            if not (reason := damage(checkpoint)):
                whole.append(checkpoint)
            elif not os.path.lexists(checkpoint):
                gone = True  # it was pruned meanwhile, so there are newer ones
            elif not whole:
                damaged.append(reason)
        if whole or not gone:
            break
    if not whole:
        reasons = "".join(f"\n  {reason}" for reason in damaged)
        raise ValueError(f"{path} holds no {'whole ' * bool(damaged)}checkpoint{reasons}")
    return Found(tuple(whole), tuple(damaged))


def run_named(path: Path) -> Path | None:
    """The run whose best checkpoint is meant; None where a path is no RUN@best."""
    if not path.name.endswith(SUFFIX) or path.exists():
        return None
    return path.with_name(path.name.removesuffix(SUFFIX)) if path.name != SUFFIX else None


def best_checkpoint(run: Path) -> Path:
    """The best checkpoint of a run that is there, by what it was to be kept by.

    Raises:
        ValueError: there is none.
    """
    if not (run / "recipe.json").is_file():
        raise ValueError(f"{run}{SUFFIX}: there is no run folder {run}")
    if (metric := metric_of(run)) is None:
        raise ValueError(f"{run}{SUFFIX}: that run keeps no best checkpoint (--keep-best METRIC)")
    names = [step_name(each.batch) for each in ranked(scores(run, metric), metric)]
    there = {path.name: path for path in checkpoints_of(run)}
    whole = (there[name] for name in names if name in there and not damage(there[name]))
    if (best := next(whole, None)) is None:
        raise ValueError(f"{run}{SUFFIX}: none of its {len(names)} evaluations has a checkpoint")
    return best


def find_checkpoint(path: Path) -> Path:
    """The checkpoint at a path: the folder itself, or the newest whole one of a run folder.

    Raises:
        ValueError: there is none.
    """
    found = find_checkpoints(path, most=1)
    for reason in found.damaged:
        log.warning("%s; %s is taken instead", reason, found.whole[0])
    return found.whole[0]


def run_folder_of(path: Path) -> Path:
    """The run folder that is meant, where a checkpoint of it may be named, or RUN@best."""
    return run_of(path) if STEP.fullmatch(path.name) else run_named(path) or path


def classes_map_of(path: Path) -> Path | None:
    """The file that says coarser classes, kept in the folder of a run that was given them; the run,
    or a checkpoint of it, is named. None of anything else."""
    file = run_folder_of(path) / CLASSES_MAP
    return file if file.is_file() else None


def class_names(path: Path, count: int) -> list[str] | None:
    """The names of a run's classes, where its folder says them.

    Raises:
        ValueError: the file there is damaged.
    """
    file = path / CLASSES
    if not file.exists():
        return None
    try:
        names = read_json(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is damaged ({error}); remove it, or mend it") from None
    if not isinstance(names, list) or not all(type(name) is str for name in names):
        raise ValueError(f"{file} is damaged: it is not a list of names; remove it, or mend it")
    if not len(set(names)) == len(names) <= count:
        raise ValueError(
            f"{file} is damaged: {len(set(names))} different names of {len(names)}, for {count} "
            "classes; remove it, or mend it"
        )
    return names
