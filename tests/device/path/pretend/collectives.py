# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportCallIssue=false
"""Collectives of the pretend device: gloo inside, and NCCL's manners.

They take contiguous tensors of this process's device, and begin on a copy of what was given. What
they make is there after `wait`: until then its place holds no number.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Work

from pretend.build import extension

AVG, SUM = dist.ReduceOp.AVG, dist.ReduceOp.SUM
UNWRITTEN = 0xFF


def _place(t: Tensor) -> Tensor:
    """A device tensor's memory, as the host's."""
    here = torch.pretend.current_device()  # pyright: ignore
    if t.device.type != "pretend":
        raise RuntimeError(f"No backend type associated with device type {t.device.type}")
    if t.device.index != here:
        raise RuntimeError(f"a collective got a tensor on {t.device}, and works on pretend:{here}")
    if not t.is_contiguous():
        raise ValueError("Tensors must be contiguous")
    return extension().on_host(t)


def _each(tensors: Any, do: Callable[[Tensor], Any]) -> Any:
    """The same lists of lists with something else in the tensors' places."""
    if isinstance(tensors, Tensor):
        return do(tensors)
    return [_each(each, do) for each in tensors]


def _flat(tensors: Any) -> list[Tensor]:
    if isinstance(tensors, Tensor):
        return [tensors]
    return [one for each in tensors for one in _flat(each)]


class _Later(Work):
    """A collective under way. As with NCCL, its tensors live until it is waited for."""

    def __init__(
        self, work: Any, made: Sequence[tuple[Tensor, Tensor, Tensor]] = (), share: int = 1
    ) -> None:
        """Args:
        made: device tensors, their places, and what will be there.
        share: what that is divided by.
        """
        super().__init__()
        self.work, self.made, self.share = work, made, share

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:  # noqa: B008
        self.work.wait()
        for _, place, result in self.made:
            place.copy_(result.div_(self.share) if self.share > 1 else result)
        self.made = ()
        return True

    def is_completed(self) -> bool:
        return self.work.is_completed()


class PretendCCL(dist.ProcessGroup):
    """A process group of the pretend device."""

    supports_splitting = False

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self.gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:
        return "pretend_ccl"

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self.named = name

    def getGroupName(self) -> str:  # noqa: N802
        return self.named

    def _get_backend(self, device: torch.device) -> "PretendCCL":  # pyright: ignore
        return self

    def _begin(
        self, begin: Callable[..., Any], outputs: Any, inputs: Any = None, opts: Any = None
    ) -> Work:
        """Begin a collective: in place where there are no inputs."""
        share = 1
        if opts is not None and getattr(opts, "reduceOp", None) == AVG:
            opts.reduceOp, share = SUM, self.size()
        given = None if inputs is None else _each(inputs, _place)
        places = _each(outputs, _place)
        hidden = _each(places, torch.clone)
        arguments = [hidden] if given is None else [hidden, _each(given, torch.clone)]
        kept = arguments[-1]
        for place in _flat(places):
            place.view(-1).view(torch.uint8).fill_(UNWRITTEN)
        if given is not None and opts is None:
            # gathered: a rank's own piece may lie where it will be, and is there all the time
            for place, copied in zip(_flat(given), _flat(kept), strict=True):
                place.copy_(copied)
        work = begin(*arguments) if opts is None else begin(*arguments, opts)
        made = list(zip(_flat(outputs), _flat(places), _flat(hidden), strict=True))
        return _Later(work, made, share)

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        opts = opts or dist.AllreduceOptions()
        return self._begin(self.gloo.allreduce, tensors, opts=opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        opts = opts or dist.AllreduceCoalescedOptions()
        return self._begin(self.gloo.allreduce_coalesced, tensors, opts=opts)

    def reduce(self, tensors: Any, opts: Any) -> Work:
        if opts.rootRank == self.rank():
            return self._begin(self.gloo.reduce, tensors, opts=opts)
        return self._given(self.gloo.reduce, tensors, opts)

    def broadcast(self, tensors: Any, opts: Any) -> Work:
        if opts.rootRank != self.rank():
            return self._begin(self.gloo.broadcast, tensors, opts=opts)
        return self._given(self.gloo.broadcast, tensors, opts)

    def _given(self, begin: Callable[..., Any], tensors: Any, opts: Any) -> Work:
        """What this rank gives, and gets nothing for."""
        return _Later(begin(_each(_each(tensors, _place), torch.clone), opts))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        return self._begin(self.gloo.allgather, outputs, inputs)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        return self._begin(self.gloo.all_gather_single, output, input)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        pairs = zip(outputs, inputs, strict=True)
        return _All([self.all_gather_single(*pair) for pair in pairs])

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        return self._begin(self.gloo.reduce_scatter, outputs, inputs, opts)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any) -> Work:
        return self._begin(self.gloo.reduce_scatter_single, output, input, opts)

    def all_to_all_single(
        self, output: Any, input: Any, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> Work:
        def begin(out: Any, given: Any) -> Any:
            return self.gloo.alltoall_base(out, given, output_sizes, input_sizes)

        return self._begin(begin, output, input)

    # as torch called them before 2.14
    _allgather_base, _reduce_scatter_base = all_gather_single, reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _start_coalescing(self, device: torch.device) -> None:
        pass

    def _end_coalescing(self, device: torch.device) -> Work:
        return _All([])

    def barrier(self, opts: Any = None) -> Work:
        return _Later(self.gloo.barrier())


class _All(Work):
    """Several collectives under way."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__()
        self.works = works

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:  # noqa: B008
        return all([work.wait() for work in self.works])

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)


def register() -> None:
    """Let torch have them for the device."""
    dist.Backend.register_backend("pretend_ccl", PretendCCL, devices=["pretend"])
