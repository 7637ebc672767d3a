"""What a person is told where a run begins, and where it ends. No torch here."""

import shlex
import time
from datetime import timedelta
from pathlib import Path

from bigvit.checkpoint.manifest import batch_of
from bigvit.plan.choose import Choice
from bigvit.recipe import Command, Detection, Layout
from bigvit.training.run_folder import RunFolder
from bigvit.training.status import standing

HOUR = 3600


def beginning(
    command: Command,
    layout: Layout,
    device: str,
    hosts: int,
    images: tuple[int, int, int],
    start: str,
    planned: Choice | None,
    folder: Path,
) -> str:
    """A paragraph: what is trained, on what, how it is cut, and what that is expected to take.

    Args:
        device: what each rank has, by its name.
        images: of training and of testing, and classes.
        start: what the run begins with, as `taken_from` says it.
        planned: where the device is known.
    """
    recipe, run = command.recipe, command.run
    model, data = recipe.model, recipe.data
    size = data.image_size
    pixels = f"{size[0]} x {size[1]}" if isinstance(size, tuple) else str(size)
    turned = ", turned for images that stand" if isinstance(data, Detection) and data.turns else ""
    kind = model.kind
    if model.described:
        flops = 2 * model.macs(size)
        kind += f", {_short(model.parameters(size))} parameters, {_short(flops)}FLOPs an image"
    train, test, classes = images
    tested = f", {test:,} to test on" if test else ""
    ways = (
        (layout.world, "rank"),
        (layout.micro_batch, "image"),
        (layout.accumulation, "micro-batch"),
    )
    cut = " x ".join(f"{count:,} {name}{_plural(count, name)}" for count, name in ways)
    way = f"{run.engine} {run.arrangement}".strip()
    where = f"{device}" + (f" on each of {hosts} hosts" if hosts > 1 else "")
    said = (
        f"{command.name}: {kind}; {type(data).__name__}: {train:,} training images of {classes:,} "
        f"classes{tested}, {pixels} px{turned}. {cut} = batch {recipe.batch_size:,}; "
        f"{recipe.updates:,} updates in {recipe.epochs:,} epochs; "
        f"{recipe.precision}, {way}, {where}; {folder}, {start}."
    )
    if planned is not None:
        took = planned.clock.update * recipe.updates
        said += f" Planned: {planned.peak / 1e9:.1f} GB of a device, {_time(took)} of training."
    return said


def taken_from(checkpoint: Path | None, update: int, state: str, init: str | None) -> str:
    """What a run begins with.

    Args:
        update: updates applied in that checkpoint.
        state: what the run folder said before, as status.json has it; "" where it said nothing.
    """
    if checkpoint is None:
        return "from its initial weights" if init is None else f"from the weights of {init}"
    batch = batch_of(checkpoint)
    also = f", batch {batch:,}" if batch != update else ""
    why = {"running": "killed", "": ""}.get(state, state)
    return f"resumed from update {update:,}{also} of {checkpoint}" + (f" ({why})" if why else "")


def ending(folder: RunFolder, device: str, code: int) -> str:
    """A paragraph: how good it is, what it took, and what comes next; nothing where the folder
    cannot be read.

    Args:
        device: the kind of a rank's, as torch names it.
    """
    try:
        found = standing(folder.path)
    except (ValueError, OSError):
        return ""
    parts: list[str] = []
    if found.best is not None and found.last:
        value = found.last.get(found.metric)
        last = "" if value is None else f", last {value:.4g}"
        parts.append(
            f"best {found.metric} {found.best.value:.4g} after batch {found.best.batch:,}{last}"
        )
    elif found.loss is not None:
        parts.append(f"last loss {found.loss:.4f}")
    seconds = time.monotonic() - folder.began
    kind = "core" if device == "cpu" else "GPU"
    spent = seconds * folder.world / HOUR
    parts.append(f"this job took {_time(seconds)}, {spent:.2g} {kind}-hours")
    if found.skipped:
        parts.append(found.skipped)
    path = shlex.quote(str(folder.path))
    if code == 0:
        best = f"{path}@best" if folder.command.run.keep_best else path
        next_ = [f"bigvit evaluate {best}", f"bigvit export {best}", f"bigvit predict {best} IMAGE"]
        if folder.command.recipe.dense is not None:
            next_ = [next_[0], f"{next_[0]} --pictures FILE"]
    else:
        next_ = ["the same command with --resume auto goes on", f"bigvit status {path}"]
    return f"{'; '.join(parts)}. Next: {'; '.join(next_)}"


def _plural(count: int, name: str) -> str:
    if count == 1:
        return ""
    return "es" if name.endswith("ch") else "s"


def _short(number: float) -> str:
    """A number with its thousands' letter."""
    for letter, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.3g} "


def _time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
