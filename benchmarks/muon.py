"""Muon on the hidden matrices of a ViT-B in bf16, on one rank and on two, a thread each, beside
torch.optim.Muon and LAMB: the last rows of `python -m benchmarks.optimizer`."""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from benchmarks.measure import Row, interleaved, ratio
from bigvit.optim.lamb import LAMB
from bigvit.optim.matrices import Exchange, Matrix, matrices_of
from bigvit.optim.muon import MUON
from bigvit.recipe import Muon
from bigvit.recipes.muon import muon_vit_b16_in1k_224

RANKS = 2
AS_FAST = 1.15  # seconds over torch's, at most
SHARED = 0.75  # of one rank's seconds on two, at most: half, and what is sent
assert isinstance(muon_vit_b16_in1k_224.optim, Muon)
RECIPE = muon_vit_b16_in1k_224.optim


def shapes(small: bool) -> list[tuple[int, int]]:
    """Queries, keys and values above each other, then the other three, of each block."""
    width, depth = (64, 2) if small else (768, 12)
    return [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)] * depth


def drawn(size: int) -> nn.Parameter:
    made = nn.Parameter(torch.randn(size) * 0.02)
    made.grad = torch.randn(size) * 1e-3
    return made


def ours(tensors: list[nn.Parameter], matrices: list[Matrix], exchange: Exchange | None) -> MUON:
    made = MUON([{"params": tensors, "weight_decay": 0.05, "matrices": True}], RECIPE)
    made.attach(matrices, exchange)
    return made


def flat(small: bool, exchange: Exchange) -> MUON:
    """As ZeRO 1 and 2 cut them: laid end to end, and a half on each rank."""
    length = sum(rows * columns for rows, columns in shapes(small)) // RANKS
    tensor, at = drawn(length), 0
    matrices: list[Matrix] = []
    for rows, columns in shapes(small):
        bounds = [min(max(0, rank * length - at), rows * columns) for rank in range(RANKS + 1)]
        held = [range(bounds[rank], bounds[rank + 1]) for rank in range(RANKS)]
        start = max(0, at - exchange.rank * length)
        parts = 3 if rows == 3 * columns else 1
        matrices += matrices_of((rows, columns), parts, held, exchange.rank, tensor, start)
        at += rows * columns
    return ours([tensor], matrices, exchange)


def pieces(small: bool, exchange: Exchange) -> MUON:
    """As ZeRO 3 and fsdp2 cut them: a half of each on each rank."""
    tensors: list[nn.Parameter] = []
    matrices: list[Matrix] = []
    for rows, columns in shapes(small):
        half = rows * columns // RANKS
        tensors.append(drawn(half))
        held = [range(rank * half, (rank + 1) * half) for rank in range(RANKS)]
        parts = 3 if rows == 3 * columns else 1
        matrices += matrices_of((rows, columns), parts, held, exchange.rank, tensors[-1], 0)
    return ours(tensors, matrices, exchange)


def whole(small: bool) -> dict[str, Callable[[], object]]:
    """On one rank."""
    made = [[drawn(rows * columns) for rows, columns in shapes(small)] for _ in range(3)]
    each = list(zip(shapes(small), made[0], strict=True))
    matrices = [
        matrix
        for (rows, columns), p in each
        for matrix in matrices_of(
            *((rows, columns), 3 if rows == 3 * columns else 1, [range(p.numel())], 0, p, 0)
        )
    ]
    theirs: list[Tensor] = []
    for (rows, columns), p in zip(shapes(small), made[1], strict=True):
        assert p.grad is not None
        parts = 3 if rows == 3 * columns else 1
        for part, grad in zip(p.detach().chunk(parts), p.grad.chunk(parts), strict=True):
            theirs.append(nn.Parameter(part.view(rows // parts, columns)))
            theirs[-1].grad = grad.view(rows // parts, columns)
    torchs = torch.optim.Muon(theirs, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    lamb = LAMB([{"params": made[2], "weight_decay": 0.05}])
    return {
        "Muon": ours(made[0], matrices, None).step,
        "torch.optim.Muon": torchs.step,
        "LAMB (ours, not compiled)": lamb.step,
    }


def _rank(rank: int, folder: str, small: bool, rounds: int) -> None:
    torch.set_num_threads(1)
    met = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=met, rank=rank, world_size=RANKS)
    exchange = Exchange(rank, None, torch.device("cpu"))
    runs = {"end to end": flat(small, exchange), "each cut": pieces(small, exchange)}
    found: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(-1, rounds):
        for name, made in runs.items():
            dist.barrier()
            began = time.perf_counter()
            made.step()
            dist.barrier()
            if i >= 0:
                found[name].append(time.perf_counter() - began)
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def rows(small: bool) -> list[Row]:
    """Those of the table."""
    rounds = 2 if small else 3
    seconds = interleaved(whole(small), rounds=rounds, clock=time.perf_counter)
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (folder, small, rounds), RANKS)
        for name, found in json.loads((Path(folder) / "found.json").read_text()).items():
            seconds[f"Muon, two ranks, {name}"] = found
    goals = {"torch.optim.Muon": AS_FAST} | {n: SHARED for n in seconds if "two ranks" in n}
    made: list[Row] = []
    for name, found in seconds.items():
        peer = name == "torch.optim.Muon"
        of = ratio(*((seconds["Muon"], found) if peer else (found, seconds["Muon"])))
        goal, text = goals.get(name), f"{statistics.median(found):.2f} s"
        if name != "Muon":
            text += f"; {'ours over it' if peer else 'over ours'} {of.value:.2f}"
        made.append(
            Row(
                f"ViT-B's matrices: {name}",
                text,
                "" if name == "Muon" else f"{of.low:.2f} to {of.high:.2f}",
                "" if goal is None else f"<= {goal:g}",
                None if goal is None else of.value <= goal,
            )
        )
    return made
