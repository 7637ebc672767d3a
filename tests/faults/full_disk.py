"""Runs of `scripts/train.py`, each a fork of this process, in which the disk is full at a write.

    LD_PRELOAD=full_disk.so python full_disk.py

Every line of the input is {"arguments", "below", "at", "times", "log", "said"}; every line of the
output the exit code of that run, whose own output goes into the file `said`.
"""

import ctypes
import json
import os
import sys
import traceback
from typing import Any

import bigvit.train
import bigvit.training.loop  # noqa: F401
from bigvit.data.sources import open_source
from bigvit.recipes.digits import digits_vit


def run(job: dict[str, Any]) -> None:
    """Train, and end this process."""
    said = os.open(job["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    disk = ctypes.CDLL(None).full_disk
    disk(job["below"].encode(), *map(ctypes.c_long, (job["at"], job["times"])), job["log"].encode())
    sys.argv[1:] = job["arguments"]
    try:
        bigvit.train.run_and_end()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


open_source(digits_vit.data, "train", None)  # what takes long to import is there in every fork
for line in sys.stdin:
    if (child := os.fork()) == 0:
        run(json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
