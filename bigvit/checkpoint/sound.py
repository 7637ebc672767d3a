"""Which checkpoint to go on from when a run has stopped itself: a whole one may hold weights that
were spoiled before anything was not finite."""

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from safetensors import safe_open

from bigvit.checkpoint import metrics
from bigvit.checkpoint.load import handed
from bigvit.checkpoint.manifest import Damaged, Manifest, batch_of, verify_share
from bigvit.checkpoint.run import MOST, checkpoints_of
from bigvit.ranks.joining import Ranks

LARGEST = 100.0  # root mean square of a model's weights; trained ones have 0.01 to 1
GROWTH = 10.0  # times that it may have grown since the checkpoint before
RISE = 3.0  # times that the loss may have risen above its lowest level
LEVEL = 5  # logged losses whose median is its level
CHUNK = 1 << 24  # elements read at once


class Weighed(NamedTuple):
    """A checkpoint's content."""

    fault: str  # why it is not good, as far as it shows by itself
    size: float  # root mean square of its weights


def newest_sound(
    run: Path, ranks: Ranks, earlier_than: int | None = None
) -> tuple[Path | None, list[str]]:
    """The newest checkpoint of a run folder that is whole, finite, of no absurd size, and whose
    loss was not far above those before. Collective; every rank reads a share of the files.

    Args:
        earlier_than: a batch that it must not have been trained on; later ones are not looked at.

    Returns:
        The checkpoint, and what is wrong with each newer one.
    """
    names, losses = "", list[tuple[int, float]]()
    if ranks.rank == 0:
        end = math.inf if earlier_than is None else earlier_than
        there = [path for path in checkpoints_of(run) if batch_of(path) < end]
        names = " ".join(path.name for path in there[-MOST:])
        losses = _losses(run / metrics.NAME)
    names = ranks.first_text(names)
    newest = [run / "checkpoints" / name for name in reversed(names.split())]
    weigh = cache(partial(_weigh, ranks=ranks))
    reasons: list[str] = []
    for path, older in zip(newest, [*newest, None][1:], strict=True):
        fault, size = weigh(path)
        unfit, before = weigh(older) if older else Weighed("", math.nan)
        fault = fault or ranks.first_text(_risen(losses, batch_of(path)))
        if not fault and not unfit and size > GROWTH * before:
            fault = f"its weights have grown from {before:.2g} to {size:.2g} (root mean square)"
        if not fault:
            return path, reasons
        reasons.append(f"{path.name} is not: {fault}")
    return None, reasons


def _weigh(folder: Path, ranks: Ranks) -> Weighed:
    """Read a checkpoint. Collective."""
    ranks.at(f"looking at {folder}")
    fault, sums = "", torch.zeros(2, dtype=torch.float64)
    try:
        manifest = handed(folder, ranks)
        verify_share(folder, manifest, ranks.rank, ranks.world)
        sums, unsound = _sums(folder, manifest, ranks)
        if unsound:
            fault = f"{unsound} is not finite"
    except (OSError, Damaged) as error:
        fault = str(error)
    fault = ranks.first_text(fault)
    squares, count = ranks.sum(sums).tolist()
    size = math.sqrt(squares / max(1, count))
    if not fault and size > LARGEST:
        fault = f"its weights are of {size:.2g} (root mean square)"
    return Weighed(fault, size)


def _sums(folder: Path, manifest: Manifest, ranks: Ranks) -> tuple[torch.Tensor, str]:
    """Of a rank's share of the files, the weights' sum of squares and number, float64 (2,), and a
    tensor that is not finite, if there is one."""
    sums, unsound = torch.zeros(2, dtype=torch.float64), ""
    for file in manifest.files[ranks.rank :: ranks.world]:
        with safe_open(folder / file.name, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118
                for part in opened.get_tensor(key).split(CHUNK):
                    square = part.double().square().sum()
                    if not square.isfinite():
                        unsound = unsound or key
                    elif key.startswith("weight/"):
                        sums += torch.stack([square, torch.tensor(float(len(part)))])
    return sums, unsound


def _losses(path: Path) -> list[tuple[int, float]]:
    """(global batches consumed, loss) of the logged updates that were applied."""
    losses: list[tuple[int, float]] = []
    with suppress(OSError):
        for line in metrics.read_metrics(path):
            loss, norm = line.values.get("loss"), line.values.get("grad_norm")
            if line.kind == metrics.UPDATE and norm is not None and type(loss) is float:
                losses.append((line.batch, loss))
    return losses


def _risen(losses: Sequence[tuple[int, float]], batch: int) -> str:
    """Whether the loss about a batch was far above its lowest level before, and had given up half
    of what was learned."""
    before = [loss for at, loss in losses if at <= batch]
    if not before:
        return ""
    # the weights after a batch are those that the next one's loss is of
    now = max([before[-1], *[loss for at, loss in losses if at > batch][:1]])
    level = min(median(before[i : i + LEVEL]) for i in range(max(1, len(before) - LEVEL + 1)))
    if math.isfinite(now) and (now <= RISE * level or now <= before[0] / 2):
        return ""
    return f"the loss had risen from {level:.4g} to {now:.4g}"
