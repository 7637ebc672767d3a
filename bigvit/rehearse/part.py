# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""What one rank does of a run: its engine, its draws, an update. In a process of its own."""

import os
import resource
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from bigvit.checkpoint.save import DTYPES
from bigvit.data.batch import Batch
from bigvit.data.class_weights import asks_for_labels
from bigvit.data.label_maps.cropping import SparseMaps
from bigvit.data.mix import draw
from bigvit.data.objects import OwnObjects, joined
from bigvit.data.prepare import Prepare
from bigvit.data.workers import view_shapes
from bigvit.engines.build import build_engine, outline
from bigvit.engines.engine import Engine, Pending
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Detection, Layout, Rates, Recipe, Run, Segmentation, sides
from bigvit.rehearse.pieces import Piece
from bigvit.rehearse.pretend import Pretend, forget, held
from bigvit.task import Task

ONCE_MORE = 2  # updates before the one that counts: ZeRO-3 knows its order after them


@dataclass
class Part:
    """What was found of a rank."""

    rank: int
    pieces: frozenset[Piece]
    dtypes: dict[tuple[str, str], str]  # by name and kind, as safetensors says them
    sliced: dict[str, int]  # bytes of its slices, by kind
    held: int = 0  # bytes of everything that was made, before an update
    update: str = ""  # why none was done
    stepping: int = 0  # bytes while the optimizer steps
    between: int = 0  # and after the update
    sent: dict[tuple[str, int], int] | None = None  # bytes of an update, by kind and ranks
    seconds: dict[str, float] | None = None
    memory: int = 0  # bytes that this took at most


def rehearse(
    recipe: Recipe, layout: Layout, run: Run, rank: int, per_node: int, fully: bool
) -> Part:
    """Build a rank's engine, and do an update if it is to be done `fully`."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(layout.world)}
    os.environ |= {"LOCAL_RANK": str(rank % per_node), "LOCAL_SIZE": str(per_node)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    warnings.simplefilter("ignore")  # libraries', of tensors that are not there
    began = time.perf_counter()
    if run.engine == "deepspeed":
        from bigvit.engines.deepspeed.before import pretend

        pretend()
    if run.engine != "single":
        store: Any = FakeStore()
        dist.init_process_group("fake", rank=rank, world_size=layout.world, store=store)
    here = torch.device("cpu")
    ranks = Ranks(rank, layout.world, here, None, hosts=("",) * layout.world)
    whole = outline(recipe)
    shapes = {name: t.shape for name, t in (*whole.named_parameters(), *whole.named_buffers())}
    micro, batches = list[Pending](), list[Batch]()
    teacher = None if recipe.teacher is None else partial(_silent, recipe)
    if fully:
        batches = [_batch(recipe, layout, whole, rank, i) for i in range(layout.accumulation)]
    mode = Pretend()
    forget()
    if fully:
        images = recipe.data.train_images if asks_for_labels(recipe) else None
        labels = None if images is None else np.zeros(images, np.int64)
        micro = Prepare(recipe, teacher=teacher, labels=labels).later(batches)
    with mode:
        engine = build_engine(
            recipe, run, layout, ranks, lambda name: torch.empty(shapes[name], device=here)
        )
        slices = list(engine.slices())
        part = Part(
            rank,
            frozenset(Piece(s.name, s.kind, s.shape, s.start, s.stop, s.writer) for s in slices),
            {(s.name, s.kind): DTYPES[s.dtype] for s in slices},
            {
                kind: sum(s.view.nbytes for s in slices if s.kind == kind)
                for kind in {s.kind for s in slices}
            },
            held(),
        )
        del slices
        part.seconds = {"build": time.perf_counter() - began}
        if fully:
            began = time.perf_counter()
            _update(engine, micro, mode, part)
            part.seconds["update"] = time.perf_counter() - began
    part.memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return part


def _update(engine: Engine, micro: Sequence[Pending], mode: Pretend, part: Part) -> None:
    of: Any = engine
    optimizer = of.inside.optimizer if hasattr(of, "inside") else of.masters.optimizer
    cut, stepping = any(hasattr(p, "ds_id") for p in engine.task.parameters()), list[int]()
    try:
        for _ in range(ONCE_MORE if cut else 0):
            engine.update(micro, Rates(0.0))
        mode.sent.clear()
        optimizer.register_step_pre_hook(lambda *_: stepping.append(held()))
        engine.update(micro, Rates(0.0))
    except RuntimeError as error:  # of what cannot be done without other ranks, or memory
        part.update = str(error).strip().splitlines()[0][:120]
        return
    part.sent = {key: size for key, size in mode.sent.items() if key[1] > 1}
    part.stepping, part.between = max(stepping), held()


def _silent(recipe: Recipe, images: torch.Tensor) -> torch.Tensor:
    """Answers of a teacher that is not there."""
    return torch.zeros(len(images), recipe.model.num_classes)


def _batch(recipe: Recipe, layout: Layout, task: Task, rank: int, micro: int) -> Batch:
    """A micro-batch without images, with what is drawn for it."""
    size, span = layout.micro_batch, layout.span(rank, micro)
    numbers, real = torch.zeros(size, dtype=torch.int64), torch.ones(size, dtype=torch.bool)
    shape = size, recipe.data.channels, *sides(recipe.data.image_size)
    images = torch.zeros(shape, dtype=torch.uint8)
    mix, draws = draw(recipe.data, recipe.seed, 0, span), task.draws(0, span)
    bad, maps = numbers[:0], None
    if recipe.maps:
        cells = torch.zeros(size, 1, 1, 1)
        maps = SparseMaps(torch.zeros(size, 5).double(), cells.int(), cells.half())
    labels = objects = sizes = None
    if isinstance(recipe.data, Segmentation):
        labels = images[:, 0]
    if isinstance(recipe.data, Detection):
        objects = joined([_an_object(recipe.data)] * size)
        sizes = torch.tensor([sides(recipe.data.image_size)] * size)
    shapes = view_shapes(recipe.data)
    views = tuple(torch.zeros(size, *each, dtype=torch.uint8) for each in shapes)
    of = images, numbers, numbers, numbers, 0, micro, real, bad, mix, draws
    of_scene: dict[str, Any] = {"labels": labels, "objects": objects, "sizes": sizes}
    return Batch(*of, maps=maps, views=views, **of_scene)


def _an_object(data: Detection) -> OwnObjects:
    """One that is as large as its image."""
    height, width = sides(data.image_size)
    frame = np.array([[0, 0, width, height]])
    bits = np.zeros(-(-height * width // 8), np.uint8)
    return OwnObjects(frame.astype(np.float32), np.zeros(1, np.int64), frame, [bits])
