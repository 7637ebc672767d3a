"""Every engine and sharding on one model: memory, time and traffic on two ranks of this machine.

    python -m benchmarks.engines [--small]

ViT-S/14 at 126 px by DeiT III's procedure in float32: AdamW, clipping, half of the samples dropped,
two micro-batches of 16 images an update and rank. Each is launched by itself, twice, in other
orders; the better of two medians counts. The table stands in docs/engines.md.

State is what lies in tensors between two updates, by their memory; the peak what the process has
more than before the engine was built, at most; the traffic what a network interface of their own
carried, by the kernel's count (Linux, as root; else that of the whole machine's loopback).
"""

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
WORLD = 2
WAYS = (
    *(("deepspeed", f"zero{stage}") for stage in range(4)),
    *(("fsdp2", name) for name in ("full", "grads")),
    *(("fairscale", name) for name in ("oss", "sdp")),
)


def sent() -> int:
    """Bytes that the loopback has carried."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split()[1])
    raise OSError("there is no loopback in /proc/net/dev")


def peak() -> int:
    """The most memory that this process had since the last call of `forget`, in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def forget() -> None:
    """Let the peak begin anew."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def storages() -> Iterator[tuple[int, int]]:
    """Each tensor's memory: where, and how many bytes."""
    import torch

    for each in gc.get_objects():
        if isinstance(each, torch.Tensor) and each.device.type == "cpu":
            local = each._local_tensor if hasattr(each, "_local_tensor") else each  # pyright: ignore
            memory = local.untyped_storage()
            yield memory.data_ptr(), memory.nbytes()


def rank(engine: str, sharding: str, small: bool, updates: int) -> None:
    """What one rank does, and rank 0 says."""
    import torch

    from benchmarks.engine import batch, recipe
    from bigvit.data.prepare import Prepare
    from bigvit.engines.build import build_engine, meet_ranks, outline
    from bigvit.ranks.joining import connect, end
    from bigvit.recipe import AdamW, Layout, Rates, Run

    torch.set_num_threads(1)
    taken = recipe(small, count=16)
    count = taken.batch_size
    adamw = AdamW(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05, weight_decay_end=None)
    taken = replace(taken, optim=adamw, batch_size=2 * count * WORLD, ema=None)
    run = Run(engine=engine, sharding=sharding, timeout=120)  # pyright: ignore
    ranks = connect(meet_ranks(run), 120)
    before = {where for where, _ in storages()}
    forget()
    base = peak()
    built = build_engine(taken, run, Layout(WORLD, count, 2), ranks)
    parameters = sum(p.numel() for p in outline(taken).parameters())
    prepare = Prepare(taken, ranks.device)
    micro = [batch(built.task, count, ranks.device, 2 * ranks.rank + i) for i in range(2)]
    seconds: list[float] = []
    carried = 0
    for i in range(updates + 1):
        ranks.agree(0)
        first, began = sent(), time.perf_counter()
        built.update(prepare.later(micro), Rates(1e-3))
        ranks.agree(0)
        if i:  # the first makes buffers
            seconds.append(time.perf_counter() - began)
            carried = sent() - first
    gc.collect()
    state = sum({where: n for where, n in storages() if where not in before}.values())
    if ranks.rank == 0:
        found = {
            "state": state / parameters,
            "peak": (peak() - base) / 2**20,
            "seconds": median(seconds),
            "carried": carried / parameters,
        }
        print("FOUND", json.dumps(found), flush=True)
    ranks.agree(0)
    end(0)


def launched(engine: str, sharding: str, small: bool, updates: int) -> dict[str, float]:
    """What rank 0 of a launch says."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(WORLD)]
    command += ["-m", "benchmarks.engines", "--rank", engine, sharding, str(updates)]
    command += ["--small"] * small
    if os.geteuid() == 0 and sys.platform == "linux":  # a loopback of their own
        shown = " ".join(command)
        command = ["unshare", "--net", "bash", "-c", f"ip link set lo up && exec {shown}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "1048576"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("FOUND")), None)
    if line is None:
        raise RuntimeError(f"{engine} {sharding}: {done.stdout[-2000:]}{done.stderr[-3000:]}")
    return json.loads(line.removeprefix("FOUND"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a small model: figures mean nothing")
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        engine, sharding, updates = options.rank
        rank(engine, sharding, options.small, int(updates))
    found: dict[tuple[str, str], list[dict[str, float]]] = {way: [] for way in WAYS}
    for ways in (WAYS, WAYS[::-1]):
        for way in ways:
            found[way].append(launched(*way, options.small, 2 if options.small else 4))
    columns = "engine", "sharding", "state, bytes a parameter", "peak, MB", "an update, s"
    print("\n| " + " | ".join((*columns, "carried, bytes a parameter")) + " |")
    print("|---|---|---|---|---|---|")
    for (engine, sharding), each in found.items():
        best = {key: min(one[key] for one in each) for key in each[0]}
        print(
            f"| {engine} | {sharding} | {best['state']:.1f} | {best['peak']:.0f} | "
            f"{best['seconds']:.2f} | {best['carried']:.1f} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
