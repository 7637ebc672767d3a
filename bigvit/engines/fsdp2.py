# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
"""torch's own sharding: `fully_shard` (FSDP2), a block at a time."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

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
from bigvit.optim.matrices import Exchange
from bigvit.ranks.joining import Ranks
from bigvit.ranks.launched import launched
from bigvit.recipe import Rates, Recipe
from bigvit.task import DTYPES, PREDICTION


class FSDP2Engine:
    """A task whose every block, and what is left of it, is cut over the ranks along its weights'
    first dimension. The pieces are the full-precision weights; what is gathered of them to compute
    with is in the recipe's precision. Gradients of micro-batches are added up in float32, whatever
    they are reduced in.
    """

    def __init__(
        self, build: BuildTask, recipe: Recipe, arrangement: Arrangement, ranks: Ranks
    ) -> None:
        """Build the task without memory, cut it, and make room for this rank's pieces: no rank
        ever holds more of it than a block."""
        self.ranks, self.arrangement = ranks, arrangement
        with init_empty_weights(include_buffers=False):
            self.task = build()
        self.mesh = _mesh(ranks, arrangement.within_hosts)
        offload, pinned = arrangement.offload, ranks.device.type != "cpu"
        policy: dict[str, Any] = {
            "mesh": self.mesh,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=DTYPES[recipe.precision],
                reduce_dtype=DTYPES[recipe.gradient_precision],
                cast_forward_inputs=False,  # targets stay as they are; the task casts its images
            ),
            "offload_policy": CPUOffloadPolicy(pinned) if offload else OffloadPolicy(),
            "reshard_after_forward": not arrangement.whole_weights,
        }
        for block in self.task.model.all_blocks():
            fully_shard(block, **policy)
            block.register_forward_pre_hook(_own_copy)  # after torch's
        self.followers = list[FSDPModule]()
        if self.task.asked:
            again = dict(policy, reshard_after_forward=True)  # no backward pass uses them
            follower = self.task.follower
            parts = [*follower.model.all_blocks(), follower]
            self.followers = [fully_shard(part, **again) for part in parts]
            # torch would fetch what ran before it for its backward pass, and the follower has none
            first = cast(FSDPModule, next(iter(self.task.model.all_blocks())))
            first.set_modules_to_backward_prefetch([first])
        fully_shard(self.task, **policy)
        where = torch.device("cpu") if offload else ranks.device
        lost = [name for name, b in self.task.named_buffers() if b.is_meta]
        assert not lost, f"{lost} would be filled with anything"
        self.task._apply(
            lambda t: torch.empty_like(t, device=where) if t.is_meta else t.to(ranks.device)
        )
        self.task.cast_constants(DTYPES[recipe.precision])
        self.modules = [m for m in self.task.modules() if isinstance(m, FSDPModule)]
        self.statistics = self.task.gathered()
        group = self.mesh.get_group(-1)  # who holds other pieces
        over = partial(total, group, ranks.device)
        exchange = Exchange(self.mesh.get_local_rank(-1), group, ranks.device)
        held = list(self._held())
        local = {n: cast(DTensor, p).to_local() for n, p in self.task.following().items()}
        self.masters = Masters(
            held, self.task, recipe, ranks, over, exchange=exchange, followers=local
        )
        meet(self.task, ranks)

    def _held(self) -> Iterator[Master]:
        """This rank's pieces: of each weight, rows of its first dimension."""
        shards, rank = self.mesh.size(-1), self.mesh.get_local_rank(-1)
        writer = self.mesh.ndim == 1 or self.mesh.get_local_rank(0) == 0
        for name, p in self._sharded():
            rows, width = -(-p.shape[0] // shards), p.shape[1:].numel()  # fewer on the last ranks
            cuts = [width * min(at * rows, p.shape[0]) for at in range(shards + 1)]
            weight = nn.Parameter(p.to_local(), p.requires_grad)
            held = tuple(range(*pair) for pair in pairwise(cuts))
            yield Master(name, tuple(p.shape), cuts[rank], weight, writer, held)

    def _sharded(self) -> Iterator[tuple[str, DTensor]]:
        for name, p in self.task.own_parameters().items():
            assert isinstance(p, DTensor), name
            yield name, p

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
            self._next(last=i + 1 == len(micro))
            each.append(backward(self.task(inputs()), *factor))
        losses = mean_over_ranks(self.task, each, self.statistics, self.ranks)
        gradients = {
            name: None if p.grad is None else cast(DTensor, p.grad).to_local()
            for name, p in self._sharded()
        }
        for p in self.task.parameters():
            p.grad = None
        info = self.masters.update(losses, gradients, rates, check, norms)
        self._follow()
        return info

    def _follow(self) -> None:
        self.masters.follow()
        for part in self.followers:
            part.reshard()  # what is gathered of them is older

    def _next(self, last: bool) -> None:
        """Prepare for a micro-batch: what is sent once an update is sent with the last one."""
        self.root.set_is_last_backward(last)
        if self.mesh.ndim == 2:
            self.root.set_requires_all_reduce(last)
        if self.arrangement.whole_weights:
            self.root.set_reshard_after_backward(last)

    @property
    def root(self) -> FSDPModule:
        return cast(FSDPModule, self.task)

    def predict(self, images: Tensor) -> Tensor:
        return self.predictions(images)[PREDICTION]

    @torch.no_grad()
    def predictions(self, images: Tensor) -> dict[str, Tensor]:
        return self.task(images)  # by the door at which torch gathers weights

    def slices(self) -> Iterator[Slice]:
        return self.masters.slices()

    def scalars(self) -> dict[str, Any]:
        return self.masters.scalars()

    def loaded(self, scalars: dict[str, Any]) -> None:
        self.masters.loaded(scalars)
        for module in self.modules:
            module.reshard()  # what an evaluation has left gathered are other weights
        self._follow()


def _own_copy(_block: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A block adds to its input in place. torch's hook hands it on as a view, made by a function of
    its own that tells when the block's backward pass is done; and such a view must not change."""
    x, *more = args
    return (x.clone() if isinstance(x, Tensor) and x.requires_grad else x, *more)


def _mesh(ranks: Ranks, within_hosts: bool) -> DeviceMesh:
    """All ranks in a row; or a row a host, each with a whole copy of the model."""
    kind, here = ranks.device.type, launched().here or ranks.world
    if not within_hosts:
        return init_device_mesh(kind, (ranks.world,), mesh_dim_names=("shard",))
    shape = ranks.world // here, here
    return init_device_mesh(kind, shape, mesh_dim_names=("replicate", "shard"))
