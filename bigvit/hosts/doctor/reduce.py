"""A timed all-reduce: `python bigvit/hosts/doctor reduce '{"first": ...}'` runs a host's ranks, and
the first of all prints one line of JSON."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

SIZES = (1, 16, 64)  # MiB
TIMES = 5


@dataclass(frozen=True)
class Part:
    """A host's share of the ranks."""

    first: int  # its first rank
    ranks: int  # how many it has
    world: int
    address: str  # of rank 0
    port: int
    seconds: float  # that a collective may take


def reduce(rank: int, part: Part) -> list[tuple[int, float]]:
    """Bytes and seconds of each all-reduce."""
    import torch
    import torch.distributed as dist

    kind = torch.accelerator.current_accelerator(check_available=True)
    device = torch.device("cpu") if kind is None else torch.device(kind.type, rank - part.first)
    if kind is not None:
        torch.accelerator.set_device_index(device)
    dist.init_process_group(
        dist.get_default_backend_for_device(device),
        init_method=f"tcp://{part.address}:{part.port}",
        rank=rank,
        world_size=part.world,
        timeout=timedelta(seconds=part.seconds),
    )
    found: list[tuple[int, float]] = []
    for size in SIZES:
        values = torch.ones(size << 18, device=device)
        dist.all_reduce(values)
        _finish(device)
        dist.barrier()
        began = time.perf_counter()
        for _ in range(TIMES):
            dist.all_reduce(values)
        _finish(device)
        found.append((size << 20, (time.perf_counter() - began) / TIMES))
    return found


def _finish(device) -> None:
    if device.type != "cpu":
        import torch

        torch.accelerator.synchronize(device)


def run_ranks(text: str) -> int:
    """Start this host's ranks and wait for all; one that fails ends the others."""
    part = Part(**json.loads(text))
    command = [sys.executable, str(Path(__file__).parent), "reduce", text]
    own = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(command, env={**own, "DOCTOR_RANK": str(part.first + i)})
        for i in range(part.ranks)
    ]
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            time.sleep(1)  # the others may have more to say
            for process in processes:
                process.kill()
        time.sleep(0.1)
    return next((process.returncode for process in processes if process.returncode), 0)


if __name__ == "__main__":
    if "DOCTOR_RANK" not in os.environ:
        sys.exit(run_ranks(sys.argv[1]))
    rank = int(os.environ["DOCTOR_RANK"])
    from bigvit.ranks.joining import end

    found = reduce(rank, Part(**json.loads(sys.argv[1])))
    if rank == 0:
        print(json.dumps(found), flush=True)
    end(0)
