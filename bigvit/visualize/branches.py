"""What residual branches weigh beside the main branch (thesis figure 3.6)."""

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.colors import TABLEAU_COLORS
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from bigvit.checkpoint.manifest import Damaged
from bigvit.checkpoint.run import checkpoints_of, classes_map_of, run_of
from bigvit.checkpoint.trained import trained
from bigvit.data.loader import test_batches
from bigvit.data.prepare import Normalise
from bigvit.data.sources import open_source
from bigvit.models import ClassTokenTransformer
from bigvit.visualize.drawing import new_figure, save

log = logging.getLogger(__name__)

# the norms that a block's attention and MLP branches begin with
NORMS = (("norm1", "norm2"), ("attns.0.norm", "ffns.0.norm"))
COLOURS = list(TABLEAU_COLORS)  # of runs
SPREAD = 30  # times that ratios differ where the axis is logarithmic


class Ratios(NamedTuple):
    """Of one checkpoint, by block: the norm of a branch over that of what it is added to."""

    run: str
    update: int
    attention: list[float]
    mlp: list[float]


def ratios(path: Path, images: int, data_root: Path | None) -> list[Ratios]:
    """Of the model of a checkpoint, or of every whole one of a run, by the first test images of its
    recipe.

    Raises:
        Damaged: none is whole.
        ValueError: the data set is not there, or is not the recipe's.
    """
    found: list[Ratios] = []
    for checkpoint in checkpoints_of(path):
        try:
            found.append(_ratios_of(checkpoint, images, data_root))
        except ValueError as error:
            if not os.path.lexists(checkpoint):
                continue  # it was pruned meanwhile
            if not isinstance(error, Damaged):
                raise
            log.warning("%s; it is left out", error)
    return found or [_ratios_of(path, images, data_root)]


def _ratios_of(path: Path, images: int, data_root: Path | None) -> Ratios:
    checkpoint, manifest, task = trained(path)
    data = task.recipe.data
    test = open_source(data, "test", data_root, classes_map_of(checkpoint))
    batch = next(test_batches(test, data, images, 0, 1, 0))
    # in float64: a branch of 1e-6 of the stream is what is left of a difference
    found = branch_ratios(task.model.double(), Normalise(data)(batch.images).double())
    attention, mlp = found.unbind(dim=1)
    return Ratios(run_of(checkpoint).name, manifest.update, attention.tolist(), mlp.tolist())


@torch.no_grad()
def branch_ratios(model: ClassTokenTransformer, images: Tensor) -> Tensor:
    """|g(x)| / |x| of the attention and MLP branches of every block (blocks, 2): norms over an
    image's tokens (in class attention, over the class token), and the mean over the images."""
    streams: list[Tensor] = []  # of each block before both branches, and after

    def before(_norm: Any, inputs: tuple[Tensor]) -> None:
        streams.append(inputs[0].clone())

    def after(_block: Any, _inputs: Any, output: Tensor) -> None:
        streams.append(output.clone())

    with ExitStack() as hooks:
        for block in model.all_blocks():
            modules = dict(block.named_modules())
            for name in next(pair for pair in NORMS if pair[0] in modules):
                hooks.enter_context(modules[name].register_forward_pre_hook(before))
            hooks.enter_context(block.register_forward_hook(after))
        model(images)
    rows: list[Tensor] = []
    for first in range(0, len(streams), 3):
        x, middle, y = streams[first : first + 3]
        x = x[:, : y.shape[1]]  # class attention reads the patches too
        pairs = ((x, middle), (middle, y))
        shares = [(b - a).flatten(1).norm(dim=1) / a.flatten(1).norm(dim=1) for a, b in pairs]
        rows.append(torch.stack([share.mean() for share in shares]))
    return torch.stack(rows)


def draw(found: Sequence[Ratios], path: Path) -> None:
    """Write figure 3.6."""
    save(picture(found), path)


def picture(found: Sequence[Ratios]) -> Figure:
    """Attention above, MLP below; a colour a run, paler for earlier updates."""
    runs = list(dict.fromkeys(each.run for each in found))
    figure = new_figure(1120, 880, layout="constrained")
    plots = figure.subplots(2, 1, sharex=True)
    for axes, title, curves in (
        (plots[0], "attention branch", [each.attention for each in found]),
        (plots[1], "MLP branch", [each.mlp for each in found]),
    ):
        for each, values in zip(found, curves, strict=True):
            updates = sorted(other.update for other in found if other.run == each.run)
            axes.plot(
                range(1, len(values) + 1),
                values,
                marker="o",
                markersize=3,
                color=COLOURS[runs.index(each.run) % len(COLOURS)],
                alpha=0.35 + 0.65 * (updates.index(each.update) + 1) / len(updates),
                label=f"update {each.update} of {each.run}",
            )
        every = [value for values in curves for value in values]
        if 0 < min(every) < max(every) / SPREAD:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_title(title)
        axes.set_ylabel("norm / norm of the main branch")
        axes.grid(alpha=0.3)
    plots[1].set_xlabel("block")
    plots[1].xaxis.set_major_locator(MaxNLocator(integer=True))
    legend = figure.legend(handles=plots[0].lines, loc="outside right upper", fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure
