"""Count how often the host waits for the device: to read a number, or to copy."""

import traceback
import warnings
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import bigvit

OURS = str(Path(bigvit.__file__).parent) + "/"
READS = ("aten._local_scalar_dense.default", "aten.nonzero.default", "aten.is_nonzero.default")


@contextmanager
def counting(found: Counter[str]) -> Generator[None]:
    """Count reads inside, as "ours" or "DeepSpeed" by whose code asked for them."""

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            tensor = args[0] if args else None
            gpu = torch.cuda.is_available()
            if str(func) in READS and isinstance(tensor, torch.Tensor) and tensor.is_cuda == gpu:
                found[_who()] += 1
            return func(*args, **(kwargs or {}))

    with Counting():
        yield


@contextmanager
def waiting(found: Counter[str]) -> Generator[None]:
    """Count what has the host wait for the device inside, by whose code did; on a CPU, reads."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    count = {"cuda": _warned, "pretend": _watched}.get(kind.type if kind else "cpu", counting)
    with count(found):
        yield


@contextmanager
def _watched(found: Counter[str]) -> Generator[None]:
    """On the pretend device of tests/device, which is told of each."""
    from pretend.watch import watch

    with watch() as seen:
        yield
    found.update(wait.who for wait in seen)


@contextmanager
def _warned(found: Counter[str]) -> Generator[None]:
    """On a GPU, by the warnings of torch."""

    def note(message: Warning | str, *_: Any, **__: Any) -> None:
        if "synchronizing CUDA operation" in str(message):
            found[_who()] += 1

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode(max(before, 1))  # 2 raises at once, and stays
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def _who() -> str:
    """The package, ours or DeepSpeed's, that is innermost on the stack."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename.startswith(OURS):  # first: one of our folders is called deepspeed, too
            return "ours"
        if "/deepspeed/" in frame.filename:
            return "DeepSpeed"
    return "others"
