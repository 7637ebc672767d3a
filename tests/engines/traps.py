"""What a rank does to show where fairscale 0.4.13 is wrong, and that its engine goes round it."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim import OSS
from fairscale.optim.grad_scaler import ShardedGradScaler
from timm.optim.lamb import Lamb
from torch import Tensor, nn

from bigvit.ranks.joining import Ranks


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 4))


def steps(
    ranks: Ranks, parallel: nn.Module, optimizer: Any, zero: Callable[[], None], of: nn.Module
) -> Tensor:
    """The weights after three steps, each rank on its own inputs."""
    generator = torch.Generator().manual_seed(ranks.rank)
    for _ in range(3):
        parallel(torch.randn(8, 6, generator=generator)).square().sum().backward()
        optimizer.step()
        zero()
    return torch.cat([p.detach().flatten() for p in of.parameters()])


def plain(ranks: Ranks, optimizer: Callable[..., Any]) -> Tensor:
    """The same by hand: gradients averaged, a whole optimizer on every rank."""
    whole = model()
    stepped = optimizer(whole.parameters())

    def average() -> None:
        for p in whole.parameters():
            assert p.grad is not None
            dist.all_reduce(p.grad)
            p.grad /= ranks.world

    stepped.register_step_pre_hook(lambda *_: average())
    return steps(ranks, whole, stepped, stepped.zero_grad, whole)


def sharded(ranks: Ranks, optimizer: Any, theirs: bool) -> Tensor:
    whole = model()
    oss = OSS(whole.parameters(), optim=optimizer)
    parallel = ShardedDataParallel(whole, oss)
    # the optimizer's own takes gradients out of the buckets that are reduced
    zero = oss.zero_grad if theirs else parallel.zero_grad
    return steps(ranks, parallel, oss, zero, whole)


def far(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def fairscale_traps(ranks: Ranks, folder: Path) -> None:
    """How far each way is from what it should be."""

    def sgd(params: Any, **_: Any) -> torch.optim.SGD:
        return torch.optim.SGD(params, lr=0.01)

    def lamb(params: Any, **_: Any) -> Lamb:
        return Lamb(params, lr=0.01)  # clips at 1 by the norm of the gradients that it has

    def unclipped(params: Any, **_: Any) -> Lamb:
        return Lamb(params, lr=0.01, max_grad_norm=None)

    found: dict[str, Any] = {
        "zero_grad of the optimizer": far(sharded(ranks, sgd, theirs=True), plain(ranks, sgd)),
        "zero_grad of the wrapper": far(sharded(ranks, sgd, theirs=False), plain(ranks, sgd)),
        "clipping inside": far(sharded(ranks, lamb, theirs=False), plain(ranks, lamb)),
        "no clipping inside": far(sharded(ranks, unclipped, theirs=False), plain(ranks, unclipped)),
    }
    whole = model()
    as_class: Any = sgd
    oss: Any = OSS(whole.parameters(), optim=as_class)
    parallel: Any = ShardedDataParallel(whole, oss)
    before = [p.data_ptr() for p in whole.parameters()]
    parallel(torch.zeros(1, 6))
    found["moves at the first forward pass"] = before != [p.data_ptr() for p in whole.parameters()]
    parallel.refresh_trainable()
    before = [p.data_ptr() for p in whole.parameters()]
    parallel(torch.zeros(1, 6))
    found["moves after it was told"] = before != [p.data_ptr() for p in whole.parameters()]
    adam: Any = OSS(model().parameters(), optim=torch.optim.Adam, lr=0.01)
    for group in adam.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p)
    adam.step()
    adam.consolidate_state_dict(0)
    if ranks.rank == 0:
        state = adam.state_dict()
        given = copy.deepcopy(state)
        adam.load_state_dict(given)
        found["changes the state that it is given"] = str(given) != str(state)
    found["its scaler is on"] = ShardedGradScaler().is_enabled()
    if ranks.rank == 0:
        (folder / "traps.json").write_text(json.dumps(found))
    ranks.agree(0)


SCENARIOS = (fairscale_traps,)
