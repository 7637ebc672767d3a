"""A trained model, read back from a checkpoint or from a run that may be going on."""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from bigvit.checkpoint.load import Stored, handed
from bigvit.checkpoint.manifest import Damaged, Manifest, verify_share
from bigvit.checkpoint.run import find_checkpoints, run_named
from bigvit.ranks.joining import Ranks, alone
from bigvit.recipe import Recipe
from bigvit.recipe.store import recipe_from_json
from bigvit.task import Task

log = logging.getLogger(__name__)
HELD = ("weight", "buffer")  # kinds of what a task's state holds
TRIES = 10  # of a run whose checkpoints go while they are read


class Found(NamedTuple):
    """What a checkpoint holds for anything but training."""

    checkpoint: Path
    manifest: Manifest
    recipe: Recipe
    weights: Mapping[str, Tensor]  # of the task, and its buffers, whole and in full precision

    @property
    def model(self) -> Mapping[str, Tensor]:
        """The weights of the model alone, by its own names."""
        prefix = "model."
        if isinstance(self.weights, Stored):
            return self.weights.below(prefix)
        named = self.weights.items()
        return {n.removeprefix(prefix): w for n, w in named if n.startswith(prefix)}


def read_checkpoint(
    path: Path,
    average: bool = False,
    flag: str = "--ema",
    ranks: Ranks | None = None,
    report: Callable[[str], None] = log.warning,
    at_once: bool = True,
) -> Found:
    """The weights at a path: a checkpoint's, or of a run folder's newest checkpoint that is what
    was written. Each rank verifies its share of the files. Collective.

    Args:
        average: the average of the weights instead of them.
        flag: what asked for it.
        report: told, on every rank, which checkpoint is damaged and what is taken instead.
        at_once: False for `Stored` weights, each read when it is asked for.

    Raises:
        Damaged: on every rank; none is whole, and why.
        ValueError: on every rank; there is none, or it holds no average.
    """
    ranks = ranks or alone()
    for _ in range(TRIES):
        paths = _listed(path, ranks, report)
        reasons: list[str] = []
        for i, checkpoint in enumerate(paths):
            found, reason, gone, refused = None, "", False, False
            try:
                found = _read(checkpoint, average, flag, ranks, at_once)
            except (OSError, Damaged) as error:
                reason, gone = str(error) or repr(error), not os.path.lexists(checkpoint)
            except ValueError as error:
                reason, refused = str(error), True
            reason = ranks.first_text(reason)
            gone, refused = ranks.agree_each([gone, refused])
            if found is not None and not reason:
                return found
            if refused:
                raise ValueError(reason)
            if gone:  # it was pruned meanwhile, so there is a newer one
                break
            reasons.append(reason)
            if i + 1 < len(paths):
                report(f"{reason}; going back to {paths[i + 1]}")
        else:
            raise Damaged("\n  ".join(reasons))
    raise ValueError(
        f"{path}: its checkpoints are removed faster than one can be read; copy one elsewhere, or "
        "let the run --keep more"
    )


def _listed(path: Path, ranks: Ranks, report: Callable[[str], None]) -> list[Path]:
    """The checkpoints to try, newest first, as rank 0 sees them. Collective."""
    names, asked, path = "", path, run_named(path) or path
    with ranks.agree_on_error(OSError, ValueError, raised=ValueError):
        if ranks.rank == 0:
            found = find_checkpoints(asked)
            names = "\n".join(str(each.relative_to(path)) for each in found.whole)
            for reason in found.damaged:
                report(f"{reason}; going back to {found.whole[0]}")
    return [path / name for name in ranks.first_text(names).split("\n")]


def _read(checkpoint: Path, average: bool, flag: str, ranks: Ranks, at_once: bool) -> Found:
    manifest = handed(checkpoint, ranks)
    recipe = recipe_from_json(manifest.recipe)
    _compare(checkpoint, manifest, recipe, average, flag)
    verify_share(checkpoint, manifest, ranks.rank, ranks.world)
    weights = Stored(checkpoint, manifest, "ema" if average else "weight")
    weights = dict(weights) if at_once else weights
    return Found(checkpoint, manifest, recipe, weights)


def _compare(
    checkpoint: Path, manifest: Manifest, recipe: Recipe, average: bool, flag: str
) -> None:
    """Raise Damaged unless a checkpoint lists the weights that its recipe builds, and no others."""
    with torch.device("meta"):
        task = Task(recipe)
    built = {
        name: tuple(weight.shape)
        for name, weight in (task.own_parameters() | task.statistics()).items()
    }
    rows = manifest.tensors
    held = {row.name: row.shape for row in rows if not row.kinds.keys().isdisjoint(HELD)}
    averages = {row.name: row.shape for row in rows if "ema" in row.kinds}
    if average and not averages:
        raise ValueError(
            f"{flag}: {checkpoint} holds no average of the weights, as its recipe's ema is None; "
            f"leave {flag} out"
        )
    trained = {name: built[name] for name, p in task.own_parameters().items() if p.requires_grad}
    # older runs kept averages of what no objective reads, too
    trained |= {name: built[name] for name in averages if name in built}
    for kind, wanted, found in (
        ("weight", built, held),
        ("average", trained if averages else {}, averages),
    ):
        for name in sorted(wanted.keys() | found.keys()):
            if wanted.get(name) != found.get(name):
                raise Damaged(
                    f"{checkpoint} is not of its recipe's model: its {kind} {name} is "
                    f"{found.get(name, 'missing')}, and should be {wanted.get(name, 'absent')}"
                )
