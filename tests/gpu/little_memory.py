"""`scripts/train.py` on a GPU that has no more memory than the built engine needs."""

from typing import Any

import torch

import bigvit.train
from bigvit.training import loop

build_engine = loop.build_engine
LEFT = 1 << 23  # bytes


def built(*args: Any) -> Any:
    engine = build_engine(*args)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + LEFT) / total)
    return engine


loop.build_engine = built
bigvit.train.run_and_end()
