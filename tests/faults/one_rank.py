"""`scripts/train.py` on one of two ranks, where rank 1 alone meets an error; and what each update
has the ranks agree on.

    one_rank.py --local_rank=RANK PHASE FOLDER RECIPE ...

PHASE: reading or evaluating. Each rank writes FOLDER/RANK.json: for every update the all-reduces
that bigvit asked for since the one before, in their order ("host", "host, later" or "device").
"""

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

import bigvit.train
from bigvit.data.sources import DigitsSource
from bigvit.dense import evaluators
from bigvit.training import loop

OURS = str(Path(bigvit.train.__file__).parent)
_, phase, folder, *rest = sys.argv[1:]
rank = int(os.environ["RANK"])
seen: list[str] = []
updates: list[list[str]] = []
all_reduce, update, evaluate, read = (
    dist.all_reduce,
    loop.Training._update,
    evaluators.evaluate,
    DigitsSource.read,
)
evaluating = False


def counted(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    if (caller := sys._getframe(1).f_code.co_filename).startswith(OURS):
        of_shards = caller.endswith("inside.py")  # by the groups that DeepSpeed made
        where = "device" if kwargs.get("group") is None or of_shards else "host"
        seen.append(f"{where}{', later' * bool(kwargs.get('async_op'))}")
    return all_reduce(tensor, *args, **kwargs)


def updated(self: Any, *args: Any) -> Any:
    result = update(self, *args)
    updates.append(seen[:])
    seen.clear()
    Path(folder, f"{rank}.json").write_text(json.dumps(updates))
    return result


def evaluated(*args: Any, **kwargs: Any) -> Any:
    global evaluating
    evaluating = True
    return evaluate(*args, **kwargs)


def failing(self: Any, index: int) -> Any:
    """This rank's disk dies."""
    if rank == 1 and (len(updates) == 7 if phase == "reading" else evaluating):
        raise OSError(errno.EIO, os.strerror(errno.EIO), f"/images/{phase}")
    return read(self, index)


dist.all_reduce = counted
loop.Training._update = updated  # type: ignore[method-assign]
evaluators.evaluate = evaluated
DigitsSource.read = failing  # type: ignore[method-assign]
sys.argv[1:] = rest
bigvit.train.run_and_end()
