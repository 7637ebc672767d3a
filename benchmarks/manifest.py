"""What a checkpoint's manifest takes at many ranks: ViT-H with LAMB's moments, masters and average.

    python -m benchmarks.manifest [--ranks 512] [--small] [--check]

Row 14 of docs/performance.md. The ranks' files are as long as theirs, and hold nothing.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import Row, arguments, report
from bigvit.checkpoint.load import handed
from bigvit.checkpoint.manifest import MANIFEST, File, Manifest, step_name, write_manifest
from bigvit.checkpoint.save import collect, file_of, parts_of, side_of, write_side_file
from bigvit.engines.engine import Slice
from bigvit.ranks.joining import alone
from bigvit.recipe import Recipe
from bigvit.recipe.find import find_recipe
from bigvit.recipe.store import to_json
from bigvit.task import Task

BYTES, SECONDS = 5e6, 1.0
KINDS = ("weight", "exp_avg", "exp_avg_sq", "ema")

Cut = Callable[[tuple[int, ...], int, int], range]
"""Which elements of a tensor of this shape a rank of so many has."""


def zero3(shape: tuple[int, ...], rank: int, world: int) -> range:
    """As DeepSpeed cuts: elements, as many on each rank."""
    each = -(-prod(shape) // world)
    return range(prod(shape))[rank * each : (rank + 1) * each]


def fsdp2(shape: tuple[int, ...], rank: int, world: int) -> range:
    """As torch cuts: rows, as many on each rank."""
    each = -(-shape[0] // world) * prod(shape[1:])
    return range(prod(shape))[rank * each : (rank + 1) * each]


def recipe() -> Recipe:
    """ViT-H, 632 M parameters."""
    return replace(find_recipe("deit3_h14_in1k_224")[1], ema=0.9999)


def slices(shapes: dict[str, tuple[int, ...]], cut: Cut, rank: int, world: int) -> Iterator[Slice]:
    """A rank's slices, without memory."""
    view = torch.empty(0)
    for name, shape in shapes.items():
        if held := cut(shape, rank, world):
            for kind in KINDS:
                yield Slice(name, kind, shape, held.start, held.stop, view, True)


def write_sides(folder: Path, of: Recipe, cut: Cut, world: int) -> list[Path]:
    """What the ranks of a run hand over to rank 0: files of their lengths, and their side files."""
    with torch.device("meta"):
        shapes = {name: tuple(p.shape) for name, p in Task(of).named_parameters()}
    sides: list[Path] = []
    for rank in range(world):
        held = list(slices(shapes, cut, rank, world))
        path = folder / file_of(rank)
        path.touch()
        os.truncate(path, sum(4 * (part.stop - part.start) for part in held))
        file = asdict(File(path.name, path.stat().st_size, f"{rank:032x}"))
        sides.append(side_of(path))
        write_side_file(sides[-1], {"file": file, **parts_of(held)})
    return sides


def write(folder: Path, of: Recipe, sides: list[Path]) -> Manifest:
    """Write a manifest from the ranks' side files."""
    files, tensors = collect(sides)
    steps = {"optimizer_steps": 1}
    manifest = Manifest(1, 1, to_json(of), steps, files=files, tensors=tensors)
    write_manifest(folder, manifest)
    return manifest


def measure(of: Recipe, cut: Cut, world: int) -> tuple[int, float, float]:
    """Bytes of a manifest, and CPU seconds to write it, and to read, judge and hand it over."""

    def timed(work: Callable[[], Any]) -> tuple[Any, float]:
        began = time.process_time()
        return work(), time.process_time() - began

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / step_name(1)
        folder.mkdir()
        sides = write_sides(folder, of, cut, world)
        written, writing = timed(lambda: write(folder, of, sides))
        found, reading = timed(lambda: handed(folder, alone()))
        assert found == written
        return (folder / MANIFEST).stat().st_size, writing, reading


def main() -> int:
    options = arguments(__doc__ or "", ranks=512)
    of, world = recipe(), 8 if options.small else options.ranks
    rows: list[Row] = []
    for cut in (zero3, fsdp2):
        size, writing, reading = measure(of, cut, world)
        size, goal = f"{size / 1e6:.2f} MB", (size <= BYTES, writing <= SECONDS)
        rows += [
            Row(f"{cut.__name__}: size", size, "", "<= 5 MB", goal[0]),
            Row(f"{cut.__name__}: to write", f"{writing:.2f} s", "", "<= 1 s", goal[1]),
            Row(f"{cut.__name__}: to read and judge once", f"{reading:.2f} s"),
        ]
    return report(f"A manifest of ViT-H at {world} ranks", rows, options.check)


if __name__ == "__main__":
    sys.exit(main())
