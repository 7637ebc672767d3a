# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
"""All that reads DeepSpeed's insides: where the full-precision weights and moments of a rank lie,
and how they become working weights again. Checked at the start against what is expected, so that
another DeepSpeed is refused instead of saved wrongly.

Every stage keeps its master weights in other places:

    0, float32   the parameters themselves, whole on every rank
    0, bf16      FP16_UnfusedOptimizer.fp32_groups, whole on every rank
    1, 2         one flat tensor a parameter group, this rank's piece of the group's parameters laid
                 end to end: DeepSpeedZeroOptimizer.single_partition_of_fp32_groups
    3            one flat tensor a sub-group, this rank's piece of every parameter:
                 DeepSpeedZeroOptimizer_Stage3.fp32_partitioned_groups_flat
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.engine import ZERO_OPTIMIZATION, DeepSpeedEngine
from torch import Tensor, nn

from bigvit.engines.deepspeed.told import tell
from bigvit.engines.engine import Slice, buffer_slices
from bigvit.engines.kept import kept_slices
from bigvit.engines.norms import Squares
from bigvit.optim.state import fresh_state, kinds, set_steps
from bigvit.ranks.joining import Ranks
from bigvit.task import Task

# what a rank holds of the master weights, by the class of DeepSpeed's wrapper
KINDS: dict[str, Literal["whole", "flat", "pieces"]] = {
    "FP16_UnfusedOptimizer": "whole",
    "DeepSpeedZeroOptimizer": "flat",
    "DeepSpeedZeroOptimizer_Stage3": "pieces",
}


def initialize(task: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> Any:
    """DeepSpeed's engine. bf16 with float32 gradients goes the way of every other type at stage 1,
    too: BF16_Optimizer, which DeepSpeed would take there alone, reduces when backward is over, and
    norms and clips the whole gradient on every rank."""
    theirs: Any = DeepSpeedEngine
    chosen = theirs._do_optimizer_sanity_check

    def choose(engine: Any, optimizer: torch.optim.Optimizer) -> Any:
        found = chosen(engine, optimizer)
        return ZERO_OPTIMIZATION if engine.zero_optimization() else found

    theirs._do_optimizer_sanity_check = choose
    try:
        return deepspeed.initialize(
            model=task, optimizer=optimizer, config=config, dist_init_required=False
        )[0]
    finally:
        theirs._do_optimizer_sanity_check = chosen


def whole_shape(p: Tensor) -> tuple[int, ...]:
    """A parameter's shape, also where stage 3 has left nothing of it here."""
    return tuple(getattr(p, "ds_shape", p.shape))


class Inside:
    """Where one rank's state lies in an initialised DeepSpeed engine.

    Raises:
        RuntimeError: the insides are not what this file was written for.
    """

    def __init__(self, engine: Any, task: Task, ranks: Ranks, clip_norm: float | None) -> None:
        self.engine, self.task, self.ranks, self.clip_norm = engine, task, ranks, clip_norm
        self.zero: Any = engine.optimizer  # DeepSpeed's wrapper around the optimizer, or itself
        self.optimizer: torch.optim.Optimizer = getattr(self.zero, "optimizer", self.zero)
        self.plain = self.zero is self.optimizer  # stage 0 in float32
        self.kind = "whole" if self.plain else KINDS.get(type(self.zero).__name__)
        own = task.own_parameters()
        self.names: dict[int, str] = {id(p): name for name, p in own.items()}
        self.shapes: dict[str, tuple[int, ...]] = {n: whole_shape(p) for n, p in own.items()}
        self.norm: Tensor | float = 0.0
        self.scale = 1.0
        self.frozen: list[Any] = [p for p in own.values() if not p.requires_grad]
        self.statistics, self.gathered = task.statistics(), task.gathered()
        self._check()
        tell(self)
        for _, flat, _ in self.parts():
            fresh_state(self.optimizer, flat)
        set_steps(self.optimizer, 0)  # bf16 at stage 0 took one on zero gradients
        if self.kind != "whole":
            self.zero.get_grad_norm_direct = self._norm
            self.zero.check_overflow = _leave_to_the_norm
        elif not self.plain:
            self.zero.step = self._step_whole

    def _check(self) -> None:
        """Every element of every parameter must lie somewhere, once (or once a rank)."""
        if self.kind is None:
            self._refuse(type(self.zero).__name__)
        seen: dict[str, int] = {}
        for part in (*(part for part, _, _ in self.parts()), *self.frozen_slices()):
            seen[part.name] = seen.get(part.name, 0) + part.stop - part.start
            size = torch.Size(part.shape).numel()
            if not 0 <= part.start < part.stop <= size or len(part.view) != part.stop - part.start:
                self._refuse(f"{part.name} [{part.start}, {part.stop}) of {part.shape}")
        if self.ranks.cpu_group is None:
            return  # a rehearsal: the others are not there
        names = sorted(self.shapes)
        held = self.ranks.sum(torch.tensor([seen.get(name, 0) for name in names]))
        frozen = {self.names[id(p)] for p in self.frozen}
        for name, count in zip(names, held.tolist(), strict=True):
            whole = self.kind == "whole" or self.kind == "flat" and name in frozen
            copies = self.ranks.world if whole else 1
            if count != copies * torch.Size(self.shapes[name]).numel():
                self._refuse(f"{name} has {count} elements over all ranks")

    def _refuse(self, what: str) -> None:
        raise RuntimeError(
            f"DeepSpeed {deepspeed.__version__} keeps its weights elsewhere than bigvit expects "
            f"({what}); use one from 0.19.8 on, below 0.20"
        )

    # the update ------------------------------------------------------------------------------

    def set_loss_scale(self, scale: float) -> None:
        """The factor of the losses to come, where DeepSpeed scales them (fp16)."""
        if not self.plain:
            scaler = self.zero.loss_scale_config if self.kind == "whole" else self.zero.loss_scaler
            scaler.cur_scale = scale
        self.scale = scale

    def scaled(self, loss: Tensor) -> Tensor:
        """A loss whose gradient is of the set scale. At stage 0 DeepSpeed divides the gradient by
        the scale but does not multiply the loss with it."""
        return loss * self.scale if self.kind == "whole" and not self.plain else loss

    def take_gradients(self, dtype: torch.dtype) -> None:
        """At stage 0 autograd adds up the micro-batches' gradients, in the parameters' type unless
        it is told another, and DeepSpeed would make those that nothing came for."""
        if self.kind == "whole":
            for p, _ in self._pairs():
                if p.dtype != dtype and (p.grad is None or p.grad.dtype != dtype):
                    p.grad, p.grad_dtype = None, dtype
                    p.grad = torch.zeros_like(p, dtype=dtype)

    def before_step(self) -> None:
        """At stage 0 in float32 the gradients are plain: take their norm."""
        if self.plain:
            gradients = [p.grad for p, _ in self._pairs() if p.grad is not None]
            self.norm = _squared_norm(gradients, torch.float32).sqrt()

    def _step_whole(self) -> None:
        """In place of FP16_UnfusedOptimizer's step, in which the host reads a number of every
        parameter: here it is one."""
        gradients = list[Tensor]()
        for working, master in self._pairs():
            gradient = torch.zeros_like(working) if working.grad is None else working.grad
            gradients.append(gradient.to(master.dtype))
            master.grad = gradients[-1]
        if self.scale != 1:
            torch._foreach_mul_(gradients, 1 / self.scale)
        self.norm = _squared_norm(gradients, torch.float32).sqrt()
        self.zero.overflow = not math.isfinite(self.norm)
        if not self.zero.overflow:
            self.optimizer.step()
            self._refresh()
        for _, master in self._pairs():
            master.grad = None

    def _norm(self, gradients: list[Tensor], params: list[Any], _: int = 2) -> Tensor:
        """The norm of a group's gradient over all ranks, in place of DeepSpeed's: which makes each
        gradient anew in float64, one kernel after the other, and copies a number to the device."""
        held = [each for each in gradients if not getattr(each, "_zero_padding", False)]
        if held:
            squares = _squared_norm(held, torch.float64)
        else:
            squares = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        if self.kind == "flat":
            squares, group = squares.float(), self.zero.dp_process_group
        else:
            group = params[0].ds_process_group
        dist.all_reduce(squares, group=group)
        return squares.sqrt()

    def clip(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip what the optimizer is about to step, as DeepSpeed would: but nobody looks whether
        the norm is above the limit. Stage 3 does the same by itself."""
        if self.clip_norm is None or self.kind == "pieces":
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = torch.as_tensor(self.grad_norm(), device=gradients[0].device)
        if self.plain:
            factor = (self.clip_norm / (norm + 1e-6)).clamp(max=1)
        else:
            factor = 1.0 / ((norm + 1e-6) / self.clip_norm).clamp(min=1)
        torch._foreach_mul_(gradients, factor)

    def discard(self) -> None:
        """Forget the gradient of an update that is refused after its backward passes. DeepSpeed
        does so where it finds one that is not finite: it is made to find that, and takes no step.
        """
        zero = self.zero
        if self.kind == "whole":
            zero.zero_grad(set_to_none=True)
            return

        def found(*_: object, **__: object) -> None:
            zero.overflow = True

        look = "check_overflow" if self.kind == "flat" else "_overflow_check_and_loss_scale_update"
        changed = {look: found, "_update_scale": _leave_as_it_is, "check_grad_overflow": True}
        kept = {name: getattr(zero, name, None) for name in changed}
        try:
            for name, value in changed.items():
                setattr(zero, name, value)
            zero.step()
        finally:
            for name, value in kept.items():
                setattr(zero, name, value)

    @property
    def overflow(self) -> bool:
        """Whether DeepSpeed skipped the last update, as its gradient was not finite."""
        return not self.plain and bool(self.zero.overflow)

    def grad_norm(self) -> Tensor | float:
        """Norm of the last gradient before clipping; not finite also where DeepSpeed skipped it."""
        if self.overflow:
            return float("inf")
        return self.norm if self.kind == "whole" else self.zero._global_grad_norm

    def count(self, squares: Squares, optimizer: torch.optim.Optimizer) -> None:
        """Add up the squares of the tensors that the optimizer is about to step."""
        now = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for part, flat, offset in self.parts():
            if id(flat) in now and part.writer and flat.grad is not None:
                gradient = flat.grad.view(-1)[offset : offset + len(part.view)]
                squares.add(part.name, gradient, part.view)

    def flats(self) -> Iterator[tuple[list[Any], Tensor, Any]]:
        """Each flat tensor, the parameters that it has pieces of, and the ranks with the rest."""
        zero = self.zero
        if self.kind == "flat":
            for i, flat in enumerate(zero.single_partition_of_fp32_groups):
                yield zero.round_robin_bit16_groups[i], flat, zero.real_dp_process_group[i]
        if self.kind == "pieces":
            held = zip(zero.fp16_groups, zero.fp32_partitioned_groups_flat, strict=True)
            for params, flat in held:
                yield params, flat, params[0].ds_process_group

    def cuts(self) -> Iterator[tuple[str, Tensor, int, list[range]]]:
        """Each parameter's name, the tensor with this rank's piece, where that begins there, and
        the elements that each rank has: the whole parameter's, or none."""
        world = self.ranks.world
        if self.kind == "whole":
            for part, flat, offset in self._whole_parts():
                yield part.name, flat, offset, [range(part.start, part.stop)] * world
        for p, flat, start, share, _ in self._shares():
            yield self.names[id(p)], flat, start, [share(rank) for rank in range(world)]

    def _shares(self) -> Iterator[tuple[Any, Tensor, int, Callable[[int], range], int]]:
        """Each parameter that is cut, the tensor with this rank's piece, where that begins there,
        what the n-th rank has of the parameter, and this rank's number."""
        for i, (params, flat, group) in enumerate(self.flats()):
            rank, at = dist.get_rank(group), 0
            for j, p in enumerate(params):
                if self.kind == "flat":
                    length = self.zero.partition_size[i]
                    offset = self.zero.round_robin_bit16_offsets[i][j]
                    start = max(offset - rank * length, 0)
                else:
                    length, offset, start = p.partition_numel(), 0, at
                    at += length
                size = math.prod(whole_shape(p))
                yield p, flat, start, partial(_share, length, offset, size), rank

    # the state -------------------------------------------------------------------------------

    def slices(self) -> Iterator[Slice]:
        """Master weights and both moments; frozen weights and buffers as the model has them."""
        yield from buffer_slices(self.statistics, writer=self.ranks.rank == 0)
        yield from self.frozen_slices()
        yield from kept_slices(self.task)
        for part, flat, offset in self.parts():
            for kind, tensor in kinds(self.optimizer, flat).items():
                view = tensor.view(-1)[offset : offset + len(part.view)]
                yield replace(part, kind=kind, view=view)

    def frozen_slices(self) -> Iterator[Slice]:
        """What is not trained, as the model has it."""
        for i, p in enumerate(self.frozen):
            if self.kind == "pieces":
                if piece := _piece(p):
                    yield self._part(p, piece.start, piece.stop, p.ds_tensor, 0)[0]
            else:
                writer = i % self.ranks.world == self.ranks.rank
                yield self._part(p, 0, p.numel(), p, 0, writer)[0]

    def parts(self) -> Iterator[tuple[Slice, Tensor, int]]:
        """Each parameter's piece on this rank, the tensor it lies in, and where it starts there."""
        yield from self._whole_parts() if self.kind == "whole" else self._cut_parts()

    def _whole_parts(self) -> Iterator[tuple[Slice, Tensor, int]]:
        for i, (working, master) in enumerate(self._pairs()):
            writer = i % self.ranks.world == self.ranks.rank
            yield self._part(working, 0, working.numel(), master, 0, writer)

    def _pairs(self) -> list[tuple[Any, Tensor]]:
        """Working and master weights of stage 0, each whole."""
        masters = [p for group in self.optimizer.param_groups for p in group["params"]]
        workings = masters if self.plain else [p for group in self.zero.fp16_groups for p in group]
        return list(zip(workings, masters, strict=True))

    def _cut_parts(self) -> Iterator[tuple[Slice, Tensor, int]]:
        for p, flat, start, share, rank in self._shares():
            if piece := share(rank):
                yield self._part(p, piece.start, piece.stop, flat, start)

    def _part(
        self, p: Any, start: int, stop: int, flat: Tensor, offset: int, writer: bool = True
    ) -> tuple[Slice, Tensor, int]:
        name = self.names[id(p)]
        view = flat.detach().view(-1)[offset : offset + stop - start]
        return Slice(name, "weight", self.shapes[name], start, stop, view, writer), flat, offset

    @torch.no_grad()
    def loaded(self, taken: int) -> None:
        """Master weights -> working weights, and the counters of the steps that were taken."""
        set_steps(self.optimizer, taken)
        self.engine.global_steps = taken
        self.engine.global_samples = taken * self.engine.train_batch_size()
        self.engine.micro_steps = taken * self.engine.gradient_accumulation_steps()
        match self.kind:
            case "flat":
                self.zero.update_lp_params()
            case "pieces":
                self.zero.checkpoint_event_prologue()
                if persistent := self.zero.persistent_parameters:
                    persistent[0].partition(persistent)
                for i in range(len(self.zero.fp16_groups)):
                    self.zero._reassign_or_swap_out_partitioned_parameters(i)
                self.zero.checkpoint_event_epilogue()
            case _:
                self._refresh()

    def _refresh(self) -> None:
        """Master weights -> working weights, where both are whole."""
        if not self.plain:
            for working, master in self._pairs():
                working.data.copy_(master.data)


def _share(length: int, offset: int, size: int, rank: int) -> range:
    """The elements of a parameter that lie in a rank's share.

    Args:
        length: of each rank's share.
        offset: where the parameter begins in the first one's.
    """
    first, last = (min(max(0, at * length - offset), size) for at in (rank, rank + 1))
    return range(first, last)


def _piece(p: Any) -> range:
    """The elements of a parameter that stage 3 leaves to this rank."""
    return _share(p.partition_numel(), 0, p.ds_numel, dist.get_rank(p.ds_process_group))


def _leave_as_it_is(_: object) -> None:
    """In place of DeepSpeed's change of its loss scale."""


def _leave_to_the_norm(partition_gradients: bool = True) -> None:
    """In place of DeepSpeed's look for what is not finite, which reads the gradient once more."""


def _squared_norm(gradients: list[Tensor], dtype: torch.dtype) -> Tensor:
    """The sum of their squares, summed in this type, without a copy of them in it."""
    return torch.stack(list(torch._foreach_norm(gradients, 2, dtype))).square().sum()
