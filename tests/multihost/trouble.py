"""`scripts/train.py`, in which one rank gets into trouble at its fifth update.

    deepspeed ... trouble.py KIND RANK RECIPE ...

KIND: crash (it raises an error), sleep (it stays there).
"""

import os
import sys
import time
from typing import Any

import bigvit.train

words = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
kind, rank, *sys.argv[1:] = words
if int(os.environ["RANK"]) == int(rank):
    from bigvit.engines.deepspeed import DeepSpeedEngine

    backward, updates = DeepSpeedEngine._backward, 0

    def troubled(self: DeepSpeedEngine, batch: Any) -> Any:
        global updates
        updates += 1
        if updates == 5 and kind == "crash":
            raise KeyError("in trouble")
        if updates == 5:
            time.sleep(3600)
        return backward(self, batch)

    DeepSpeedEngine._backward = troubled
bigvit.train.run_and_end()
