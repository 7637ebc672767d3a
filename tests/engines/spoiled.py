"""`scripts/train.py`, in which the last rank's loss of one global batch is spoiled.

    deepspeed ... spoiled.py HOW RECIPE ...

HOW: jump, or infinite (the loss, while its gradient is not).
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import guards  # noqa: E402
from launched import changed_losses  # noqa: E402

from bigvit import train  # noqa: E402
from bigvit.ranks.joining import alone  # noqa: E402

how, *rest = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
here = replace(alone(), rank=int(os.environ["RANK"]), world=int(os.environ["WORLD_SIZE"]))
change = {"jump": guards.twenty_times, "infinite": guards.infinite}[how]
sys.argv[1:] = rest
with changed_losses({guards.BAD}, here, change):
    train.run_and_end()
