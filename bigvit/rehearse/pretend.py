# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false
"""Tensors without memory, and collectives without other ranks, which are counted."""

import gc
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorConverter,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._pytree import tree_leaves

READ = torch.ops.aten._local_scalar_dense.default
NONZERO, UNIQUE = torch.ops.aten.nonzero.default, torch.ops.aten._unique2.default
FOUND, SUPPRESSION = (NONZERO, UNIQUE), "torchvision::nms"
"""Whose results are as large as the values say."""
KINDS = {
    "allreduce_": "all-reduce",
    "_allgather_base_": "all-gather",
    "allgather_": "all-gather",
    "allgather_into_tensor_coalesced_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_": "reduce-scatter",
    "reduce_scatter_tensor_coalesced_": "reduce-scatter",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "alltoall_base_": "all-to-all",
}
"""Collectives of torch's c10d, as `bigvit.plan.traffic` calls them."""


class _Forgetful(FakeTensorConverter):
    """Keeps no reference to a tensor: one that has any cannot be moved by `nn.Module.to`."""

    def set_tensor_memo(self, t: Tensor, v: FakeTensor) -> None:
        pass


class Pretend(FakeTensorMode):
    """Tensors are shapes alone: but whole numbers, and single ones that follow from no other
    tensor, are there, as code goes by them. What the host reads of a tensor that is not there is 1,
    and no comparison is true: so a norm is finite, and nothing has overflowed. Of vectors that are
    not there all numbers are looked for and found, and all boxes stay."""

    @property
    def avoid_device_init(self) -> bool:
        return True  # torch looks for devices otherwise, at every operation

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.fake_tensor_converter = _Forgetful(copy_data=False)
        self.sent: Counter[tuple[str, int]] = Counter()  # bytes, by kind and number of ranks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given: dict[str, Any] = kwargs or {}
        tensors = [each for each in tree_leaves((args, given)) if isinstance(each, Tensor)]
        if func.namespace == "c10d":
            self._count(func._opname, args)
            self.cache_enabled = False  # it would keep references to what is sent
            try:
                found = super().__torch_dispatch__(func, types, args, given)
            finally:
                self.cache_enabled = True
            if func._opname == "_allgather_base_":
                self._repeated(*args[:2])
            return found
        if any(isinstance(each, FakeTensor) for each in tensors):
            if func is READ:
                kind = tensors[0].dtype
                return False if kind == torch.bool else 1.0 if kind.is_floating_point else 1
            if func in FOUND or func._schema.name == SUPPRESSION:
                return self._found(func, tensors[0])
            return super().__torch_dispatch__(func, types, args, given)
        out = None
        if not tensors or not _there(tensors):
            out = super().__torch_dispatch__(func, types, args, given)
        if not _there(each for each in tree_leaves(out) if isinstance(each, Tensor)):
            return out
        with unset_fake_temporarily():
            return func(*args, **given)

    def _found(self, func: Any, among: Tensor) -> Any:
        """All of it: so shapes are the largest that there can be."""
        with unset_fake_temporarily():
            every = torch.arange(len(among))
        if func is UNIQUE:
            return every[:1], every, every[:0]
        return every if func._schema.name == SUPPRESSION else every[:, None]

    def _repeated(self, every: Tensor, own: Tensor) -> None:
        """Whole numbers of other ranks are as this rank's own: code goes by them."""
        if not isinstance(every, FakeTensor) and _there((every, own)):
            with unset_fake_temporarily():
                every.view(-1, *own.shape).copy_(own)

    def _count(self, name: str, args: Iterable[Any]) -> None:
        if name not in KINDS:
            return
        size, ranks = 0, 1
        for each in args:
            if isinstance(each, torch.ScriptObject) and str(each._type()).endswith("ProcessGroup"):
                ranks = dist.ProcessGroup.unbox(each).size()
            leaves = [leaf for leaf in tree_leaves(each) if isinstance(leaf, Tensor)]
            size = max(size, sum(leaf.nbytes for leaf in leaves))
        self.sent[KINDS[name], ranks] += size


def _there(tensors: Iterable[Tensor]) -> bool:
    """Whether all of them are such as are there."""
    return all(
        each.device.type == "cpu" and (each.dim() == 0 or not each.dtype.is_floating_point)
        for each in tensors
    )


def forget() -> None:
    """Take what is there already for no concern of `held`, which is slow otherwise."""
    gc.collect()
    gc.freeze()


def held() -> int:
    """Bytes of all tensors that were made since `forget`, each memory once."""
    gc.collect()
    found: dict[int, int] = {}
    for each in gc.get_objects():
        if issubclass(type(each), Tensor) and each.device.type == "cpu":
            local: Tensor = getattr(each, "_local_tensor", each)
            memory = local.untyped_storage()
            found[memory._cdata] = memory.nbytes()
    return sum(found.values())
