# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
"""This process among the others: joining them, agreeing with them, leaving them."""

import logging
import os
import socket
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """What a rank knows of the others. Collectives here are over a CPU group, or over nobody."""

    rank: int
    world: int
    device: torch.device  # this rank's
    cpu_group: dist.ProcessGroup | None  # None: one process that joined nobody

    def agree(self, flag: int) -> int:
        """The largest of the ranks' flags. Collective."""
        return self.agree_each([flag])[0]

    def agree_each(self, flags: Sequence[int]) -> list[int]:
        """The largest of the ranks' flags, for each of several. Collective."""
        return self._reduce(torch.tensor(flags), dist.ReduceOp.MAX).tolist()

    def first_text(self, text: str) -> str:
        """The text of the first rank that has any, at most 1,000 bytes of it. Collective."""
        first = self.world - self.agree(self.world - self.rank if text else 0)
        if first == self.world:
            return ""
        said = torch.zeros(1000, dtype=torch.uint8)
        if self.rank == first:
            encoded = text.encode()[:1000]
            said[: len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
        return bytes(self.sum(said).tolist()).rstrip(b"\0").decode(errors="replace")

    def sum(self, values: Tensor) -> Tensor:
        """The sum of the ranks' tensors, which lie on the CPU. Collective."""
        return self._reduce(values.clone(), dist.ReduceOp.SUM)

    def _reduce(self, values: Tensor, op: dist.ReduceOp.RedOpType) -> Tensor:
        if self.cpu_group is not None:
            dist.all_reduce(values, op=op, group=self.cpu_group)
        return values


def alone() -> Ranks:
    """One process that joins nobody."""
    return Ranks(0, 1, _device(), None)


def join(timeout: timedelta) -> Ranks:
    """Connect to the other ranks, through DeepSpeed. Also works for one process by itself."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    if "RANK" not in os.environ:
        single = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_PORT": _free_port()}
        os.environ.update(single)
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # DeepSpeed's own calls, which torch 2.14 warns of by the hundred
    old = r"`torch\.distributed\.\w+` is deprecated"
    warnings.filterwarnings("ignore", message=old, category=FutureWarning)
    import deepspeed

    from bigvit.engines.deepspeed_inside import build_no_ops

    build_no_ops()
    device = _device()
    deepspeed.init_distributed(
        dist_backend="nccl" if device.type == "cuda" else "gloo",
        auto_mpi_discovery=False,
        timeout=timeout,
        verbose=False,
    )
    group: Any = dist.new_group(backend="gloo", timeout=timeout)
    return Ranks(dist.get_rank(), dist.get_world_size(), device, group)


def end(code: int) -> NoReturn:
    """End this process now. Shutting down the interpreter, or the process groups, aborts now and
    then, as threads of the collectives still run: a finished run would end as a crash."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _free_port() -> str:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])
