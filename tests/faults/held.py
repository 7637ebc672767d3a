"""`scripts/train.py`, in which the rank that HELD names stays for ever where the ranks connect."""

import os
import time
from typing import Any

import bigvit.train
from bigvit.ranks import joining

if os.environ["RANK"] == os.environ["HELD"]:

    def held(*_: Any) -> Any:
        print("held", flush=True)
        time.sleep(3600)

    joining.connect = held
bigvit.train.run_and_end()
