"""Ranks that meet, watch each other and save, without DeepSpeed: SCENARIO FOLDER.

leave: rank 1 leaves with a reason while the others are at work. stand: all wait, to be stopped.
race: the ranks save a checkpoint, and rank 0 is the last to come out of the collective before it.
failed: the same checkpoint is written again after a failure, and rank 0 is late to clear that up.
"""

import os
import shutil
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bigvit.checkpoint import save as saving
from bigvit.checkpoint.save import NotSaved, Saver
from bigvit.engines.engine import Slice
from bigvit.ranks.joining import Ranks, end
from bigvit.ranks.watching import Watch

TIMEOUT = 4.0


def joined() -> Ranks:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        "127.0.0.1", int(os.environ["MASTER_PORT"]), None, rank == 0, timedelta(seconds=60), False
    )
    hosts = ("here",) * world
    return Ranks(rank, world, torch.device("cpu"), None, store, hosts)


def watched(ranks: Ranks) -> Watch:
    watch = Watch(ranks, TIMEOUT)
    watch.on_end = lambda reason, code: print(f"told {code}: {reason}", flush=True)
    print("watching", flush=True)
    return watch


def leave(ranks: Ranks, folder: Path) -> None:
    watch = watched(ranks)
    if ranks.rank == 1:
        watch.leave("its file cannot be read", 2)
        end(2)
    time.sleep(60)


def stand(ranks: Ranks, folder: Path) -> None:
    watched(ranks)
    time.sleep(60)


class Engine:
    """What a saver asks of one: a tensor of which each rank has a half."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.view = ranks, torch.full((4,), float(ranks.rank))

    def slices(self) -> Any:
        start = 4 * self.ranks.rank
        yield Slice("w", "weight", (8,), start, start + 4, self.view, True)

    def scalars(self) -> dict[str, Any]:
        return {}


def connected(ranks: Ranks) -> Ranks:
    dist.init_process_group("gloo", store=ranks.store, rank=ranks.rank, world_size=ranks.world)
    return replace(ranks, cpu_group=dist.group.WORLD)


def wait_for(folder: Path, pattern: str, seconds: float) -> None:
    """What another rank writes is there, or will not be."""
    deadline = time.monotonic() + seconds
    while not list(folder.glob(pattern)) and time.monotonic() < deadline:
        time.sleep(0.01)


def race(ranks: Ranks, folder: Path) -> None:
    ranks = connected(ranks)
    if ranks.rank == 0:
        remove = saving.remove_leftovers

        def late(path: Path) -> None:
            wait_for(path, ".step_*/rank_00001.json", 2)
            remove(path)

        saving.remove_leftovers = late
    engine: Any = Engine(ranks)
    saver = Saver(engine, folder, {}, keep=3)
    saver.save(1)
    saver.wait()
    print("saved", flush=True)


def failed(ranks: Ranks, folder: Path) -> None:
    ranks = connected(ranks)
    engine: Any = Engine(ranks)
    saver = Saver(engine, folder, {}, keep=3)
    if ranks.rank == 0:
        write, remove = saving.write_tensors, shutil.rmtree

        def full(*_: Any) -> Any:
            saving.write_tensors = write
            raise OSError("no space")

        def late(path: Path, **options: Any) -> None:
            wait_for(path, "rank_00001.json.again", 1)
            remove(path, **options)

        saving.write_tensors = full
        saving.shutil.rmtree = late
    saver.save(1)
    try:
        saver.wait()
    except NotSaved as error:
        print(error, flush=True)
    saver.save(1)
    saver.wait()
    print("saved", flush=True)


if __name__ == "__main__":
    name, folder = sys.argv[-2:]
    scenario = {each.__name__: each for each in (leave, stand, race, failed)}[name]
    scenario(joined(), Path(folder))
    end(0)
