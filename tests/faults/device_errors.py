"""`scripts/train.py` on a rank whose device, or another's, meets an error; and what is set there.

    RANK=... python device_errors.py --local_rank=N ERROR WHO PHASE FOLDER RECIPE ...

ERROR: memory, kernel (an operation that has no deterministic one) or none. WHO: the rank that
meets it, or all. PHASE: building, update (the fourth) or evaluating. Each rank writes
FOLDER/RANK.json: whether its kernels were deterministic when the ranks met.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as compiler

import bigvit.train
from bigvit.data.prepare import Inputs
from bigvit.engines import build
from bigvit.task import Task
from bigvit.training import loop

_, error, who, phase, folder, *rest = sys.argv[1:]
rank = int(os.environ["RANK"])
SAID = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of "
    "which 1.50 GiB is free. Including non-PyTorch memory, this process has 77.60 GiB in use."
)
build_engine, forward, predict, meet = (
    loop.build_engine,
    Task.forward,
    Task.predictions,
    build.meet,
)


def fail() -> None:
    """What the device of this rank does."""
    if who in (str(rank), "all"):
        if error == "memory":
            raise torch.OutOfMemoryError(SAID)
        torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))  # has no deterministic kernel


def built(*args: Any) -> Any:
    if phase == "building":
        fail()
    return build_engine(*args)


def forwarded(self: Task, inputs: Any) -> Any:
    if phase == "update" and isinstance(inputs, Inputs) and inputs.number == 3:
        fail()
    return forward(self, inputs)


def predicted(self: Task, images: Any) -> Any:
    if phase == "evaluating":
        fail()
    return predict(self, images)


def met(timeout: float) -> Any:
    """The ranks have computed nothing yet."""
    state = {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn": torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark,
        "attention": not torch.backends.cuda.cudnn_sdp_enabled(),
        "compiler": compiler.deterministic,
        "CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        "NCCL_ALGO": os.environ.get("NCCL_ALGO"),
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(state))
    return meet(timeout)


loop.build_engine, Task.forward, Task.predictions = built, forwarded, predicted  # type: ignore
build.meet = met
sys.argv[1:] = rest
bigvit.train.run_and_end()
