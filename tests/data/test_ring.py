"""The memory that a rank shares with its data processes: written in place, bounded, and flat."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import DATA, RECIPE, jpegs, write_folders

from bigvit.data.decode import Unread
from bigvit.data.loader import train_batches
from bigvit.data.ring import Filled, Ring
from bigvit.data.sources import open_source
from bigvit.data.workers import PREFETCH
from bigvit.recipe import batch_layout
from bigvit.task import Task

FLAT = 12 << 20  # bytes that a rank and its data processes together may gain
MICRO_BATCH, WORKERS = 64, 4


def test_a_slot_holds_what_was_written_until_it_is_free():
    ring = Ring(2, 3, (1, 2, 2))
    for slot in (0, 1):
        assert ring.free.popleft() == slot
        numbers, *_, valid, pixels, views = ring.fields(slot)
        assert views == []
        numbers[:], valid[:] = 10 * slot + np.arange(9).reshape(3, 3), (True, False, True)
        pixels[:] = 100 * slot + np.arange(12).reshape(3, 4)
    for slot in (1, 0):
        batch = Filled(ring, slot, (7, 9), 0.5).batch()
        ring.fields(slot).pixels[:] = 255  # the next one's
        assert torch.equal(batch.images, 100 * slot + torch.arange(12).view(3, 1, 2, 2))
        found = torch.stack([batch.targets, batch.ids, batch.slots])
        assert torch.equal(found, 10 * slot + torch.arange(9).view(3, 3))
        assert batch.valid.tolist() == [True, False, True] and batch.bad.tolist() == [7, 9]
        assert batch.images.dtype == torch.uint8 and batch.core_seconds == 0.5
    assert list(ring.free) == [1, 0]


@pytest.mark.parametrize("slots", [1 << 30, 1 << 60])
def test_memory_that_there_is_not_is_said_before_anything_begins(slots):
    with pytest.raises(Unread, match=r"GB, do not fit into memory .*; use fewer --workers"):
        Ring(slots, 1 << 20, (3, 224, 224))


def memory(pids: list[int]) -> int:
    """Bytes of processes that lie in no file, what they share counted once."""
    texts = (Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids)
    kinds = r"^Pss_(?:Anon|Shmem): +(\d+) kB"
    return sum(int(kb) << 10 for text in texts for kb in re.findall(kinds, text, re.MULTILINE))


def children() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("images", [8_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_memory_stays_flat_over_many_images(images: int, tmp_path: Path) -> None:
    """And no micro-batch leaves a file open, here or in a data process."""
    write_folders(tmp_path, "train", jpegs(256))
    schedule = replace(RECIPE.schedule, epochs=images // 256 + 1)
    recipe = replace(RECIPE, data=replace(DATA, train_images=256), schedule=schedule)
    recipe = replace(recipe, batch_size=256)
    source, layout = open_source(recipe.data, "train", tmp_path), batch_layout(recipe, 1, 64)
    before, draws = children(), Task(recipe).draws
    batches = train_batches(source, recipe, layout, 0, WORKERS, 0, draws)
    found, files = list[int](), list[int]()
    each = images // 256 // 10
    for _ in range(10):
        for micro in islice(batches, each):
            assert len(micro) == 256 // MICRO_BATCH
        pids = [os.getpid(), *(children() - before)]
        assert len(pids) == 1 + WORKERS
        found.append(memory(pids))
        files.append(sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids))
    print([f"{bytes / 1e6:.1f} MB" for bytes in found], files)
    settled = 1 + PREFETCH * WORKERS * MICRO_BATCH * 10 // images  # once every slot was written to
    assert max(found[settled:]) - found[settled] < FLAT
    assert max(files) - min(files) <= 1 + WORKERS  # each may be reading an image
    batches.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert children() == before


LEFT = """
import sys
sys.path.insert(0, sys.argv[1])
from pictures import DATA, RECIPE
from dataclasses import replace
from pathlib import Path
from bigvit.data.loader import train_batches
from bigvit.data.sources import open_source
from bigvit.recipe import batch_layout
from bigvit.task import Task
recipe = replace(RECIPE, data=replace(DATA, train_images=64))
source, layout = open_source(recipe.data, "train", Path(sys.argv[2])), batch_layout(recipe, 1, 8)
batches = train_batches(source, recipe, layout, 0, 2, 0, Task(recipe).draws)
print(len(next(batches)))
"""


@pytest.mark.slow
def test_a_program_ends_that_leaves_its_data_processes_at_work(tmp_path: Path) -> None:
    """They ignore what Python would end them with."""
    write_folders(tmp_path, "train", jpegs(64))
    words = [sys.executable, "-c", LEFT, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
