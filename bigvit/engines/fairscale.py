# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyright: reportUnknownParameterType=false
"""fairscale, as the thesis trained with it: whole weights on every rank, each parameter's moments
and full-precision weight on one (OSS)."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim.oss import OSS
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bigvit.engines.arrangement import Arrangement
from bigvit.engines.engine import (
    BuildTask,
    Check,
    Pending,
    Slice,
    StepInfo,
    backward,
    mean_over_ranks,
    total,
)
from bigvit.engines.kept import meet, settled
from bigvit.engines.masters import Master, Masters
from bigvit.optim.groups import parameter_groups
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Rates, Recipe
from bigvit.task import DTYPES


class FairscaleEngine:
    """A task that is whole on every rank, in the recipe's precision. OSS says which rank steps a
    parameter, and hands the result to the others.

    Clipping, loss scaling and state dicts are not fairscale's: they are those of every engine, its
    grad scaler is off on a CPU, and its `load_state_dict` changes what it is given.
    """

    def __init__(
        self, build: BuildTask, recipe: Recipe, arrangement: Arrangement, ranks: Ranks
    ) -> None:
        self.ranks = ranks
        self.task = build().to(ranks.device, DTYPES[recipe.precision])
        named = self.task.own_parameters()
        trained = {name for name, p in named.items() if p.requires_grad}
        groups = parameter_groups(named, trained, self.task, recipe)
        self.oss: Any = OSS(groups, optim=_Stepped, lr=0.0)
        self.statistics = self.task.gathered()
        if arrangement.whole_gradients:
            # reduces a gradient to every rank
            wrapped = DistributedDataParallel(self.task, broadcast_buffers=False, init_sync=False)
        else:
            # ... to the rank that steps it alone
            wrapped = ShardedDataParallel(
                self.task, self.oss, broadcast_buffers=False, sync_models_at_startup=False
            )
            # what it does before the first forward pass, too: OSS moves the weights then, and what
            # shares their memory would be left behind
            wrapped.refresh_trainable()
        self.parallel: Any = wrapped
        mine = {id(p) for group in self.oss.optim.param_groups for p in group["params"]}
        self.named = {name: p for name, p in named.items() if id(p) in mine}
        held: list[Master] = []
        for i, (name, p) in enumerate(named.items()):
            if id(p) in mine:
                # in float32 the same memory, but no gradient in common: one in a bucket of
                # ShardedDataParallel that is taken away would be computed elsewhere from then on
                weight = nn.Parameter(p.detach().float())
                held.append(Master(name, tuple(p.shape), 0, weight))
            elif name not in trained:
                writer = i % ranks.world == ranks.rank
                held.append(Master(name, tuple(p.shape), 0, p, writer))
        over = partial(total, None, ranks.device)  # each rank holds other parameters
        followers = self.task.following()
        self.masters = Masters(
            held, self.task, recipe, ranks, over, step=self.oss.step, followers=followers
        )
        # of each rank, what follows the parameters that it steps
        names = {id(p): name for name, p in named.items()}
        self.followers = [
            [
                followers[name].data
                for group in of
                for p in group["params"]
                if (name := names[id(p)]) in followers
            ]
            for of in self.oss.partition_parameters()
        ]
        meet(self.task, ranks)
        self.pairs = [(named[each.name], each.weight) for each in held]
        self.oss.optim.then = self._step

    def _step(self) -> None:
        """What OSS does on this rank before the others are given the results."""
        self.masters.optimizer.step()
        self._refresh()

    @torch.no_grad()
    def _refresh(self) -> None:
        """Master weights -> working weights, of this rank's parameters."""
        for working, master in self.pairs:
            if working.dtype == master.dtype:
                assert working.data_ptr() == master.data_ptr(), "fairscale has moved a weight"
            else:
                working.copy_(master)

    @settled
    def update(
        self,
        micro: Sequence[Pending],
        rates: Rates,
        check: Check | None = None,
        norms: bool = False,
    ) -> StepInfo:
        factor, each = (self.masters.loss_scale.scale, len(micro)), list[dict[str, Tensor]]()
        for i, inputs in enumerate(micro):
            self.ranks.went_on()
            last = i + 1 == len(micro)
            with contextlib.nullcontext() if last else self.parallel.no_sync():
                each.append(backward(self.parallel(inputs()), *factor))
        losses = mean_over_ranks(self.task, each, self.statistics, self.ranks)
        gradients = {name: p.grad for name, p in self.named.items()}
        try:
            info = self.masters.update(losses, gradients, rates, check, norms)
            if info.applied:
                self._follow()
            return info
        finally:
            # not OSS' own: what lies in a bucket of ShardedDataParallel would stay there
            self.parallel.zero_grad(set_to_none=True)

    @torch.no_grad()
    def _follow(self) -> None:
        """The average, from the rank that has it, for the follower on all. Collective."""
        self.masters.follow()
        for rank, held in enumerate(self.followers):
            if held:
                flat = torch.cat([each.view(-1) for each in held])
                dist.broadcast(flat, rank)
                parts = flat.split([each.numel() for each in held])
                for each, part in zip(held, parts, strict=True):
                    each.copy_(part.view_as(each))

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        return self.task.predict(images)

    @torch.no_grad()
    def predictions(self, images: Tensor) -> dict[str, Tensor]:
        return self.task.predictions(images)

    def slices(self) -> Iterator[Slice]:
        return self.masters.slices()

    def scalars(self) -> dict[str, Any]:
        return self.masters.scalars()

    def loaded(self, scalars: dict[str, Any]) -> None:
        self.masters.loaded(scalars)
        self.oss.optim.then = self._refresh
        self.oss.step()  # the others are given what was read
        self.oss.optim.then = self._step
        self._follow()


class _Stepped(torch.optim.Optimizer):
    """What OSS takes for the optimizer of a rank's parameters: `then` is its step."""

    then: Callable[[], None]

    def __init__(self, groups: Any, **defaults: Any) -> None:
        super().__init__(groups, defaults)

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.then()
