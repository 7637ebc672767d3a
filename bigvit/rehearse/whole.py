# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""Rehearses a run: every rank's share of the data and of the checkpoint, and one rank's engine."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bigvit.data.batch import Draws
from bigvit.data.mix import draw
from bigvit.data.sampler import Sampler
from bigvit.data.tested import test_places
from bigvit.dense.mean_iou import shared
from bigvit.engines.build import outline
from bigvit.engines.deepspeed.config import read_sharding, stage_of
from bigvit.layers.stochastic_depth import Dropped, Kept, drops
from bigvit.plan.states import States, states
from bigvit.plan.traffic import totals, traffic
from bigvit.recipe import Command, Detection, Layout, Recipe, Run, Segmentation
from bigvit.rehearse.checkpoint import rehearse_checkpoint
from bigvit.rehearse.part import Part, rehearse
from bigvit.rehearse.pieces import Pieces

MICRO = 2  # micro-batches of the update: what follows is like the second
BLOCKS = 2  # of a model that ZeRO-3 updates: each of its weights is cut anew for every rank
WITHIN = 0.01  # share by which bytes may be above those predicted
ENGINES = {
    "deepspeed": "bigvit.engines.deepspeed.engine",
    "fsdp2": "bigvit.engines.fsdp2",
    "fairscale": "bigvit.engines.fairscale",
    "single": "bigvit.engines.single",
}
NEVER = (
    "the network: its speed, its faults, and that NCCL connects so many ranks",
    "kernels: that they run and fit on the device, their speed, and the numbers that come out",
    "the device's memory beyond tensors: fragments, workspaces, NCCL's buffers, other processes",
    "the file system: its speed with so many ranks, its locks, and that all hosts see the same",
    "the data: that every host has the same images, and that they can be read and decoded in time",
    "that ranks do the same at the same time: the others were not there",
)
"""What no rehearsal can prove."""


@dataclass
class Findings:
    """What was found out."""

    proved: list[dict[str, str]] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)
    not_proved: list[str] = field(default_factory=list)

    def say(self, fine: bool, what: str, how: str) -> None:
        (self.proved if fine else self.failed).append({"what": what, "how": how})


def rehearsed(
    command: Command, layout: Layout, per_node: int, rank: int
) -> tuple[Findings, dict[str, Any]]:
    """What was found of a run's rank among so many, and figures.

    Args:
        per_node: ranks of a host.
    """
    recipe, run = command.recipe, replace(command.run, compile=False)
    found = Findings()
    began = time.perf_counter()
    for what, how in _of_data(recipe, layout, rank):
        found.say(not how.startswith("no: "), what, how)
    if command.run.compile:
        found.not_proved.append("--compile: blocks were not compiled")
    if recipe.teacher is not None:
        found.not_proved.append("the teacher: its weights were not read, and nothing was asked")
    cut = time.perf_counter() - began
    shorter, short = _shorter(recipe, layout, run)
    whole = replace(recipe, batch_size=short.batch_size)
    parts, own = _parts(whole, shorter, short, run, per_node, rank)
    pieces = Pieces(recipe, layout, run, per_node)
    _compare_pieces(found, pieces, parts)
    said = states(shorter, short, run, per_node)
    of = "" if shorter.model == recipe.model else f"with {BLOCKS} blocks "
    if of:
        found.not_proved.append(f"an update of the whole model: one of {BLOCKS} blocks was done")
    _compare_bytes(found, said, own, of)
    sent = _compare_traffic(found, shorter, short, run, per_node, own, of)
    dtypes = {key: kind for part in parts for key, kind in part.dtypes.items()}
    saved = rehearse_checkpoint(command, pieces, dtypes, layout.world)
    found.say(
        True,
        f"a checkpoint of {layout.world} ranks is whole: {saved['files']} files, "
        f"{saved['bytes'] / 1e9:.2f} GB in all",
        f"every rank's pieces by formula, laid end to end; its manifest of "
        f"{saved['manifest'] / 1e6:.2f} MB written in {saved['write_seconds']:.2f} s and read in "
        f"{saved['read_seconds']:.2f} s",
    )
    found.not_proved += NEVER
    figures = {
        "predicted": {**asdict(states(recipe, layout, run, per_node)), "sent": sent[0]},
        "counted": {
            "micro_batches": short.accumulation,
            "ranks": sorted(part.rank for part in parts),
            "slices": next(part.sliced for part in parts if part.rank == rank),
            "stepping": own.stepping,
            "between": own.between,
            "sent": sent[1],
        },
        "checkpoint": saved,
        "seconds": {"cuts": cut, **(own.seconds or {}), "all": time.perf_counter() - began},
        "memory": max(part.memory for part in parts),
    }
    return found, figures


def _of_data(recipe: Recipe, layout: Layout, rank: int) -> Iterator[tuple[str, str]]:
    """What is proved of a batch's cut, and how; that begins with "no: " where it is not so."""
    batch, spans = recipe.batch_size, list[tuple[int, int]]()
    for each in range(layout.world):
        spans += [layout.span(each, micro) for micro in range(layout.accumulation)]
    data = recipe.data
    of = data.train_images, data.repeats, batch, recipe.seed, _standing(recipe, data.train_images)
    _, slots, _ = Sampler(*of).batch(0)
    taken = np.sort(np.concatenate([slots[start:stop] for start, stop in spans]))
    whole = np.array_equal(taken, np.sort(slots)) and len(taken) == batch
    groups = all(start % size == 0 for size in recipe.groups.values() for start, _ in spans)
    yield (
        f"every image of a batch of {batch} is on one rank, and groups stay together",
        ("" if whole and groups else "no: ")
        + f"the places of {layout.world} ranks x {layout.accumulation} micro-batches of "
        f"{layout.micro_batch} laid end to end",
    )
    task = outline(recipe)
    every, mixed = task.draws(0, (0, batch)), draw(recipe.data, recipe.seed, 0, (0, batch))
    same = True
    for micro in range(layout.accumulation):
        start, stop = span = layout.span(rank, micro)
        own, mine = task.draws(0, span), draw(recipe.data, recipe.seed, 0, span)
        same &= _alike(tree_leaves(mixed), tree_leaves(mine), span, batch)
        same &= _alike(tree_leaves(every.objectives), tree_leaves(own.objectives), span, batch)
        for views, all_, its in _passes(recipe, every, own):
            images, place = views * batch, (views * start, views * stop)
            kept = list(_kept(recipe, its, views * (stop - start)))
            same &= _alike(list(_kept(recipe, all_, images)), kept, place, images)
    yield (
        f"what rank {rank} draws for a batch is its part of what all draw",
        ("" if same else "no: ")
        + "dropped samples, mixing and the objectives' draws of both, compared",
    )
    if recipe.data.tested:
        images = getattr(recipe.data, "test_images", None) or 50_000
        standing = _standing(recipe, images)
        places = (
            id
            for each in range(layout.world)
            for id in _tested(recipe, layout, each, images, standing)
        )
        once = sorted(places) == list(range(images))
        yield (
            "an evaluation counts every test image once",
            ("" if once else "no: ") + f"the places of {images} images on {layout.world} ranks",
        )


def _standing(recipe: Recipe, images: int) -> NDArray[np.bool_] | None:
    """Which images have their canvas turned, for want of the images every fourth; as
    `scenes.standing_of`."""
    turned = isinstance(recipe.data, Detection) and recipe.data.turns
    return np.arange(images) % 4 == 3 if turned else None


def _tested(
    recipe: Recipe, layout: Layout, rank: int, images: int, standing: NDArray[np.bool_] | None
) -> Iterator[int]:
    """The test images that a rank counts."""
    cut = layout.micro_batch, rank, layout.world
    if isinstance(recipe.data, Segmentation):
        yield from (id for group in shared(range(images), *cut) for id in group)
    else:
        batches = test_places(images, *cut, standing)
        yield from (place.id for batch in batches for place in batch if place.real)


def _passes(recipe: Recipe, every: Draws, own: Draws) -> Iterator[tuple[int, Any, Any]]:
    """What the model's passes drop, of all and of a rank, with the views of an image in them."""
    yield 1, every.model, own.model
    for group, all_, its in zip(recipe.data.groups, every.views, own.views, strict=True):
        if all_ is not None:
            yield group.count, all_, its


def _alike(whole: Sequence[Any], part: Sequence[Any], span: tuple[int, int], images: int) -> bool:
    """Whether what is drawn for each of so many images is the same in a part of them; and what is
    of the batch, as a temperature, in all of it."""
    return len(whole) == len(part) and all(
        torch.equal(one[slice(*span)] if len(one) == images else one, other)
        for one, other in zip(whole, part, strict=True)
        if isinstance(one, Tensor)
    )


def _kept(recipe: Recipe, drawn: Dropped, batch: int) -> Iterator[Tensor]:
    """What each sample counts in each branch."""
    depth = recipe.model.drop_path
    for each in drops(depth, recipe.model.branches, drawn):
        if isinstance(each, Kept):
            yield torch.zeros(batch).index_fill_(0, each.samples, each.scale)
        elif each is not None:
            yield each


def _shorter(recipe: Recipe, layout: Layout, run: Run) -> tuple[Recipe, Layout]:
    """What an update is done of here: few micro-batches, and of ZeRO-3 few blocks."""
    micro, model = min(MICRO, layout.accumulation), recipe.model
    if run.engine == "deepspeed" and stage_of(read_sharding(run.arrangement)) == 3:
        # a head reads blocks by number, and the depth of stages is a sum
        deep = any(each.name == "depth" for each in fields(model)) and recipe.dense is None
        if deep and getattr(model, "depth", 0) > BLOCKS:
            micro, model = 1, replace(model, **{"depth": BLOCKS})
    short = Layout(layout.world, layout.micro_batch, micro)
    return replace(recipe, model=model, batch_size=short.batch_size), short


def _parts(
    whole: Recipe, shorter: Recipe, layout: Layout, run: Run, per_node: int, rank: int
) -> tuple[list[Part], Part]:
    """The pieces of the rank, the first and the last; and the rank's update."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import_module(ENGINES[run.engine])  # once, before they are forked
    if run.engine == "deepspeed":
        from bigvit.engines.deepspeed import before

        before.prepare()
    context, waiting = get_context("fork"), list[tuple[Any, Connection]]()
    others = {0, rank, layout.world - 1} - ({rank} if shorter == whole else set())
    jobs = [(shorter, rank, True), *((whole, each, False) for each in sorted(others))]
    sys.stdout.flush()
    for recipe, each, fully in jobs:
        ours, theirs = context.Pipe(duplex=False)
        given = recipe, layout, run, each, per_node, fully
        process = context.Process(target=_send, args=(theirs, given), daemon=True)
        process.start()
        theirs.close()
        waiting.append((process, ours))
    found: list[Part] = []
    for process, connection in waiting:
        try:
            found.append(connection.recv())
        except EOFError:
            process.join()
            raise RuntimeError(
                f"the rehearsal of a rank ended with code {process.exitcode}; its error is above"
            ) from None
        process.join()
    return found if shorter == whole else found[1:], found[0]


def _send(connection: Connection, given: tuple[Any, ...]) -> None:
    connection.send(rehearse(*given))
    connection.close()
    os._exit(0)  # nobody waits for collectives' threads


def _compare_pieces(found: Findings, pieces: Pieces, parts: Sequence[Part]) -> None:
    wrong = ""
    for part in parts:
        expected = frozenset(pieces.of(part.rank))
        for piece in sorted(expected ^ part.pieces):
            wrong = wrong or f"rank {part.rank}: {piece}; "
    ranks = ", ".join(str(part.rank) for part in sorted(parts, key=lambda part: part.rank))
    found.say(
        not wrong,
        "the pieces of every rank tile every tensor",
        f"{wrong}formulas, which engines of ranks {ranks} follow, for all ranks laid end to end",
    )


def _compare_bytes(found: Findings, said: States, own: Part, of: str) -> None:
    if own.sent is None:
        found.not_proved.append(f"the state's bytes: no update could be done here ({own.update})")
        return
    for what, predicted, held in (
        ("while the optimizer steps", said.step + said.host + said.lent, own.stepping),
        ("between updates", said.between + said.host, own.between),
    ):
        found.say(
            held <= (1 + WITHIN) * predicted,
            f"rank {own.rank} holds {held / 1e6:,.2f} MB {of}{what}",
            f"its tensors, without memory; {predicted / 1e6:,.2f} MB are predicted of the rank "
            "that holds most",
        )


def _compare_traffic(
    found: Findings, recipe: Recipe, layout: Layout, run: Run, per_node: int, own: Part, of: str
) -> tuple[dict[str, int], dict[str, int]]:
    said = totals(traffic(recipe, layout, run, per_node, own.rank))
    predicted = {f"{kind} over {ranks}": size for (kind, ranks), size in sorted(said.items())}
    if own.sent is None:
        found.not_proved.append(f"the collectives: no update could be done here ({own.update})")
        return predicted, {}
    counted = {f"{kind} over {ranks}": size for (kind, ranks), size in sorted(own.sent.items())}
    differing = [
        f"{key}: {counted.get(key, 0):,} and not {predicted.get(key, 0):,} bytes"
        for key in sorted(counted.keys() | predicted.keys())
        if counted.get(key, 0) != predicted.get(key, 0)
    ]
    total = sum(counted.values())
    found.say(
        not differing,
        f"an update {of}({layout.accumulation} micro-batches a rank) sends {total / 1e9:.3f} GB",
        "; ".join(differing) or "its collectives, by kind and ranks: as predicted, to the byte",
    )
    return predicted, counted
