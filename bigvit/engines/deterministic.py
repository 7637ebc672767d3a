"""Kernels that sum in a fixed order: on the same GPUs a run gives the same bits again."""

import os
from collections.abc import Iterator
from typing import Any

VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": (":4096:8", ":16:8"), "NCCL_ALGO": ("Ring", "^NVLS")}
"""What cuBLAS and NCCL read when they start: what is set, and what else is as good."""


def unfit() -> Iterator[str]:
    """Variables that are set to what lets sums take any order."""
    for name, good in VARIABLES.items():
        if (value := os.environ.get(name, good[0])) not in good:
            yield f"{name} is {value!r}; leave it unset, or make it {' or '.join(good)}"


def set_variables() -> None:
    """Before torch is imported."""
    for name, good in VARIABLES.items():
        os.environ.setdefault(name, good[0])


def fix_kernels() -> None:
    """Before anything is computed. What has no such kernel raises a RuntimeError then."""
    import torch

    torch.use_deterministic_algorithms(True)  # torch's compiler follows, and so does attention:
    torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN's has no such backward pass
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    # nothing reads memory that it has not written; filling it would cost a pass over all of it
    memory: Any = torch.utils.deterministic
    memory.fill_uninitialized_memory = False


def cost(device: str) -> str:
    """What a run is told at its start, on a kind of device."""
    if device == "cpu":
        return "--deterministic: on a CPU sums have a fixed order anyway, and nothing changes"
    return (
        "--deterministic: the same bits on the same GPUs; costs time in attention's backward "
        "pass, in stochastic depth, and in sums over many ranks (docs/performance.md)"
    )
