"""What `bigvit plan` predicts beside what happens: state bytes and collectives of live engines.

    python -m benchmarks.plan [--small] [--check]

Ranks of this machine train a small ViT, two micro-batches an update and half of the blocks
recomputed, under every engine and stage. State is what lies in tensors that the engine has made, by
their memory: while the optimizer steps, and after the update; of the rank that holds most. What is
sent is counted where torch.distributed is called, and compared by kind and number of ranks.
"""

import gc
import itertools
import json
import os
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, arguments, report
from bigvit.plan.states import States, states
from bigvit.plan.traffic import totals, traffic
from bigvit.recipe import AdamW, Layout, Rates, Recipe, Run
from bigvit.recipe.find import find_recipe

WITHIN = 0.01
LOADED = ("bigvit.engines.deepspeed.engine", "bigvit.engines.fsdp2", "bigvit.engines.fairscale")
BUCKET = {"reduce_bucket_size": 400_000, "allgather_bucket_size": 400_000}
PIECES = {"stage3_prefetch_bucket_size": 0, "stage3_param_persistence_threshold": 1000}
SHARDINGS: dict[str, dict[str, Any]] = {
    "zero0": {"stage": 0},
    "zero1": {"stage": 1, "overlap_comm": False, "reduce_scatter": False, **BUCKET},
    "zero1, scattered": {"stage": 1, "overlap_comm": True, "round_robin_gradients": True, **BUCKET},
    "zero2": {"stage": 2, "overlap_comm": True, "contiguous_gradients": True, **BUCKET},
    "zero2, offload": {"stage": 2, **BUCKET, "offload_optimizer": {"device": "cpu"}},
    "zero3": {"stage": 3, **BUCKET, **PIECES},
    "zero3, far": {"stage": 3, "stage3_max_reuse_distance": 0, **BUCKET, **PIECES},
    "zero3, parts": {"stage": 3, "sub_group_size": 300_000, **BUCKET, **PIECES},
    "zero3, node": {"stage": 3, "zero_hpz_partition_size": 2, **BUCKET, **PIECES},
    "zero3, offload": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "cpu"},
        **BUCKET,
        **PIECES,
    },
}
"""DeepSpeed's, with buckets that are smaller than the model."""


@dataclass(frozen=True)
class Case:
    engine: Any
    sharding: str
    world: int
    lamb: bool
    ema: bool
    precision: Any
    gradient: Any

    def __str__(self) -> str:
        optimizer = "LAMB" if self.lamb else "AdamW"
        average = ", average" if self.ema else ""
        of = "" if self.gradient == self.precision else f"/{self.gradient}"
        ranks = f"{self.world} rank{'s' if self.world > 1 else ''}"
        way = f"{self.engine} {self.sharding}" if self.engine != "deepspeed" else self.sharding
        return f"{way}, {ranks}, {optimizer}{average}, {self.precision}{of}"

    @property
    def recipe(self) -> Recipe:
        taken = find_recipe("deit3_h14_in1k_126")[1]
        model = replace(taken.model, embed_dim=128, depth=4, num_heads=4)
        data = replace(taken.data, mix=None, repeats=1, image_size=28)
        adamw = AdamW(
            lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05, weight_decay_end=None
        )
        return replace(
            taken,
            model=replace(model, drop_path=replace(model.drop_path, rate=0.0, group=1)),
            data=data,
            optim=taken.optim if self.lamb else adamw,
            batch_size=2 * self.world,
            precision=self.precision,
            gradient_precision=self.gradient,
            ema=0.99 if self.ema else None,
        )

    def run(self, folder: Path) -> Run:
        name = self.sharding or None
        if self.engine == "deepspeed":
            name = str(folder / f"{self.sharding}.json")
            if not Path(name).exists():  # before any rank is there
                Path(name).write_text(json.dumps({"zero_optimization": SHARDINGS[self.sharding]}))
        return Run(engine=self.engine, sharding=name, timeout=120, checkpoint_activations=0.5)

    @property
    def layout(self) -> Layout:
        return Layout(self.world, 1, 2)

    @property
    def per_node(self) -> int:
        return 2 if self.world == 4 else self.world


def cases(small: bool) -> Iterator[Case]:
    """All ways with AdamW and with LAMB and an average, in two precisions, on 1, 2 and 4 ranks."""
    engines = [("deepspeed", name) for name in SHARDINGS]
    engines += [("fsdp2", name) for name in ("full", "grads", "node", "full_offload")]
    engines += [("fairscale", name) for name in ("oss", "sdp")]
    for world in (2,) if small else (1, 2, 4):
        for engine, sharding in engines[::4] if small else engines:
            if "node" in sharding and world < 4:
                continue
            if sharding != "zero3, node":  # DeepSpeed makes those groups once a process
                yield Case(engine, sharding, world, False, False, "fp32", "fp32")
            if world == 2 and not small:
                gradient = "bf16" if engine == "fairscale" else "fp32"
                yield Case(engine, sharding, world, False, True, "bf16", gradient)
            if world == 4:
                yield Case(engine, sharding, world, True, True, "bf16", "bf16")
    yield Case("single", "", 1, False, True, "bf16", "fp32")


class Memory:
    """The memory of tensors that were made since then."""

    def __init__(self) -> None:
        gc.collect()
        self.before = self._storages()  # held, so that no other gets its address

    def _storages(self) -> dict[int, Any]:
        import torch

        found: dict[int, Any] = {}
        for each in gc.get_objects():
            if issubclass(type(each), torch.Tensor) and each.device.type == "cpu":
                local = getattr(each, "_local_tensor", each)
                memory = local.untyped_storage()
                found[memory.data_ptr()] = memory
        return found

    def held(self) -> int:
        """Bytes."""
        gc.collect()
        return sum(m.nbytes() for at, m in self._storages().items() if at not in self.before)


SENT: Counter[tuple[str, int]] = Counter()
KINDS = {
    "all_reduce": "all-reduce",
    "all_gather_into_tensor": "all-gather",
    "all_gather_single": "all-gather",
    "all_gather": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter",
    "reduce_scatter_single": "reduce-scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
inside = False


def count_collectives() -> None:
    """Count the bytes of what torch.distributed's functions are called with, wherever they went."""
    import torch.distributed as dist

    for name, kind in KINDS.items():
        function = getattr(dist.distributed_c10d, name)
        counted = _counted(function, kind)
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is function:
                setattr(module, name, counted)


def _counted(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    import torch
    import torch.distributed as dist

    def counted(*args: Any, **options: Any) -> Any:
        global inside
        if inside:  # one calls another
            return function(*args, **options)
        given = [*args, *options.values()]
        tensors = [[each] for each in given if isinstance(each, torch.Tensor)]
        tensors += [each for each in given if isinstance(each, list)]
        size = max(sum(t.nbytes for t in each) for each in tensors)
        group = next((each for each in given if isinstance(each, dist.ProcessGroup)), None)
        SENT[kind, dist.get_world_size(group)] += size
        inside = True
        try:
            return function(*args, **options)
        finally:
            inside = False

    return counted


def rank(number: int, world: int, port: int, folder: Path, told: Any, found: Any) -> None:
    """What one rank does: every case in turn."""
    per_node = 2 if world == 4 else world
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number % per_node)}
    os.environ |= {"WORLD_SIZE": str(world), "LOCAL_SIZE": str(per_node)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    import torch

    from bigvit.engines.build import meet_ranks
    from bigvit.ranks.joining import connect

    torch.set_num_threads(1)
    ranks = connect(meet_ranks(Run(timeout=120)), 120)
    count_collectives()
    for case in told:
        found.put((number, case, *measured(case, ranks, folder)))
    ranks.agree(0)
    found.close()
    found.join_thread()
    os._exit(0)  # some engines wait for nobody at their end


def measured(case: Case, ranks: Any, folder: Path) -> tuple[int, int, dict[tuple[str, int], int]]:
    """Bytes in the step and after it, and what is sent."""
    import torch.distributed as dist

    from benchmarks.engine import batch
    from bigvit.data.prepare import Prepare
    from bigvit.engines.build import build_engine, outline

    taken = case.recipe
    task, prepare = outline(taken), Prepare(taken, ranks.device)
    micro = [batch(task, 1, ranks.device, 2 * ranks.rank + i) for i in range(2)]
    memory = Memory()
    engine: Any = build_engine(taken, case.run(folder), case.layout, ranks)
    engine_inside = getattr(engine, "inside", None)
    optimizer = engine.masters.optimizer if engine_inside is None else engine_inside.optimizer
    if case.sharding == "oss":  # DistributedDataParallel calls no function that could be counted

        def reduce(_, bucket):  # pyright: ignore
            work: Any = dist.all_reduce(bucket.buffer().div_(case.world), async_op=True)
            return work.get_future().then(lambda future: future.value()[0])

        engine.parallel.register_comm_hook(None, reduce)
    for _ in range(3):  # stage 3 knows its order after two
        engine.update(prepare.later(micro), Rates(1e-3))
    SENT.clear()
    stepping: list[int] = []
    optimizer.register_step_pre_hook(lambda *_: stepping.append(memory.held()))
    engine.update(prepare.later(micro), Rates(1e-3))
    sent = dict(SENT)
    return max(stepping), memory.held(), sent


def launch(world: int, all_: list[Case], folder: Path) -> Iterator[tuple[int, Case, int, int, Any]]:
    """What each rank finds of each case."""
    context = get_context("forkserver")
    context.set_forkserver_preload([*LOADED, "benchmarks.plan"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = context.Queue()
    each = [(number, world, port, folder, all_, found) for number in range(world)]
    processes = [context.Process(target=rank, args=args) for args in each]
    for process in processes:
        process.start()
    for _ in range(world * len(all_)):
        yield found.get(timeout=600)
    for process in processes:
        process.join(60)


def rows_of_states(case: Case, said: States, step: int, between: int) -> Iterator[Row]:
    for what, predicted, held in (
        ("in the step", said.kept + said.stepping + said.host + said.lent, step),
        ("between updates", said.between + said.host, between),
    ):
        ratio = predicted / held
        ok = abs(ratio - 1) <= WITHIN
        name, shown = f"{case}: state {what}, predicted over held", f"{ratio:.4f}"
        yield Row(name, shown, f"{held / 2**20:.1f} MiB", f"1 +- {WITHIN}", ok)


def row_of_traffic(case: Case, folder: Path, sent: dict[tuple[str, int], int]) -> Row:
    said = totals(traffic(case.recipe, case.layout, case.run(folder), case.per_node))
    sent = {key: size for key, size in sent.items() if key[1] > 1}
    wrong = [
        f"{kind} over {ranks}: {said[kind, ranks]} predicted, {sent.get((kind, ranks), 0)} sent"
        for kind, ranks in said.keys() | sent.keys()
        if said[kind, ranks] != sent.get((kind, ranks), 0)
    ]
    shown = "; ".join(wrong) or f"{sum(sent.values()) / 2**20:.1f} MiB"
    return Row(f"{case}: sent, bytes by kind", shown, "", "exact", not wrong)


def main() -> int:
    options = arguments(__doc__ or "")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    all_, rows = list(cases(options.small)), list[Row]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in all_:
            case.run(folder)
        by_world = itertools.groupby(sorted(all_, key=lambda c: c.world), lambda c: c.world)
        for world, some in by_world:
            held: dict[Case, list[tuple[int, int]]] = {}
            for number, case, step, between, sent in launch(world, list(some), folder):
                held.setdefault(case, []).append((step, between))
                if number == 0:
                    rows.append(row_of_traffic(case, folder, sent))
                if len(held[case]) == world:
                    said = states(case.recipe, case.layout, case.run(folder), case.per_node)
                    rows += rows_of_states(case, said, *map(max, zip(*held[case], strict=True)))
    from benchmarks import plan_kept  # torch: ranks are forked without it

    rows += plan_kept.rows(options.small)
    return report("Predicted and held, one thread a rank", rows, options.check)


if __name__ == "__main__":
    sys.exit(main())
