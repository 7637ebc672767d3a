# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""A follower's weights from the average that lies beside the moments, wherever a stage has both.

0      both are whole: copied
1, 2   the average is one flat tensor a group, this rank's piece of it; the follower's weights lie
       end to end like the group's, and are gathered there as those are
3      both are cut alike: this rank's piece is copied, and nothing is sent
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bigvit.engines.deepspeed.inside import Inside
from bigvit.optim import EMA
from bigvit.task import Task


class Following:
    """A task's follower, if it has one."""

    def __init__(self, inside: Inside, task: Task) -> None:
        self.inside, self.followers = inside, task.following()
        self.flat = list[tuple[Tensor, Tensor, Any]]()
        if self.followers and inside.kind == "flat":
            self.flat = list(map(self._laid, range(len(inside.zero.round_robin_bit16_groups))))

    def _laid(self, number: int) -> tuple[Tensor, Tensor, Any]:
        """Lay the followers of a group end to end as its weights are: the group's piece of the
        average, the new memory, and the ranks that have the other pieces."""
        zero = self.inside.zero
        flat, group = (
            zero.single_partition_of_fp32_groups[number],
            zero.real_dp_process_group[number],
        )
        params = zero.round_robin_bit16_groups[number]
        memory = torch.empty(
            flat.numel() * dist.get_world_size(group),
            dtype=params[0].dtype,
            device=self.inside.ranks.device,
        )
        offsets = zero.round_robin_bit16_offsets[number]
        for p, at in zip(params, offsets, strict=True):
            if (own := self.followers.get(self.inside.names[id(p)])) is not None:
                own.data = memory[at : at + own.numel()].view(own.shape)
        return flat, memory, group

    @torch.no_grad()
    def follow(self) -> None:
        """The average, as it is now. Collective at stages 1 and 2, and at 3 for weights that stay
        gathered."""
        if not self.followers:
            return
        state = self.inside.optimizer.state
        for flat, memory, group in self.flat:
            piece = state[flat][EMA].view(-1).to(memory.device, memory.dtype)
            # newer torch has it under another name, too
            dist.all_gather_into_tensor(memory, piece, group=group)  # pyright: ignore[reportDeprecated]
        if self.inside.kind == "pieces":
            self._partition()
        for part, flat, offset in self.inside.parts():
            if self.inside.kind != "flat":
                average = state[flat][EMA].view(-1)[offset : offset + len(part.view)]
                self._put(part.name, average)
        for part in self.inside.frozen_slices():
            self._put(part.name, part.view)
        if self.inside.kind == "pieces":
            self._gather()

    def _put(self, name: str, piece: Tensor) -> None:
        """Fill one follower, or this rank's piece of it."""
        own: Any = self.followers.get(name)
        if own is not None:
            held = getattr(own, "ds_tensor", own.data)
            held.view(-1)[: len(piece)].copy_(piece)

    def _persistent(self) -> list[Any]:
        """Weights that stage 3 leaves gathered."""
        ours = set(map(id, self.followers.values()))
        return [p for p in self.inside.zero.persistent_parameters if id(p) in ours]

    def _partition(self) -> None:
        if held := self._persistent():
            held[0].partition(held)
        for own in self.followers.values():
            of: Any = own
            of.ds_secondary_tensor = None  # the pieces within a host are old

    def _gather(self) -> None:
        if held := self._persistent():
            held[0].all_gather(held)
