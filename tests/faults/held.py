"""`scripts/train.py`, in which the rank that HELD names stays for ever where the ranks connect."""

import os
import time
from typing import Any

import bigvit.train
from bigvit.engines import ranks

if os.environ["RANK"] == os.environ["HELD"]:

    def held(*_: Any) -> Any:
        print("held", flush=True)
        time.sleep(3600)

    ranks.connect = held
bigvit.train.run_and_end()
