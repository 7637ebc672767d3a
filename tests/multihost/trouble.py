"""`scripts/train.py`, in which a rank gets into the trouble that the variable TROUBLE names.

`crash RANK`: it raises an error in its fifth micro-batch. `sleep RANK`: it stays there.
`slow RANK`: each takes a fifth of a second. Nothing: a plain run.
"""

import os
import time
from typing import Any

import bigvit.train

kind, _, rank = os.environ.get("TROUBLE", "").partition(" ")
if rank == os.environ["RANK"]:
    from bigvit.engines.deepspeed.engine import DeepSpeedEngine

    backward, batches = DeepSpeedEngine._backward, 0

    def troubled(self: DeepSpeedEngine, inputs: Any) -> Any:
        global batches
        batches += 1
        if kind == "slow":
            time.sleep(0.2)
        elif batches == 5 and kind == "crash":
            raise KeyError("in trouble")
        elif batches == 5:
            time.sleep(3600)
        return backward(self, inputs)

    DeepSpeedEngine._backward = troubled
bigvit.train.run_and_end()
