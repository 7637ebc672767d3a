"""Errors for want of memory, as torch and the libraries of a GPU say them."""

import torch

WANTING = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "can't allocate memory")
"""NCCL's words for it, cuBLAS', and those of torch on a CPU."""


def wanting(error: BaseException) -> str:
    """What an error says of memory that is lacking, in a line; nothing where it is another one."""
    text = str(error)
    if not isinstance(error, torch.OutOfMemoryError | MemoryError):
        if not isinstance(error, RuntimeError) or not any(word in text for word in WANTING):
            return ""
    said = ". ".join(text.splitlines()[0].split(". ")[:3]).strip(". ") if text else ""
    return f"out of memory ({said})" if said else "out of memory"
