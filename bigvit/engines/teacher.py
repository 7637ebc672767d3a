# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
"""A recipe's teacher on a device: it is asked, and never changed.

It is no part of the task, so that nothing of it is sharded with that, averaged, decayed or saved.

Shapes: B images, C channels, H and W of the student, h and w of the teacher, K classes.
"""

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import interpolate

from bigvit.ranks.joining import Ranks
from bigvit.ranks.launched import launched
from bigvit.recipe import Recipe, Teacher
from bigvit.recipe.depth import sides
from bigvit.task import DTYPES, teacher_model

MOST = 64  # calls whose time is taken between two log lines


class TooLarge(ValueError):
    """A teacher that a device has no room for."""


class Teaching:
    """A teacher whose weights are on this rank's device, whole, or cut over the ranks of its host
    (`fully_shard`, a block at a time; then every rank of it asks equally often)."""

    def __init__(self, recipe: Recipe, ranks: Ranks, sharded: bool) -> None:
        """Make room for the weights, which `put` fills. Collective where they are cut.

        Args:
            sharded: over the host's ranks.
        """
        assert (teacher := recipe.teacher) is not None
        self.device, self.dtype = ranks.device, DTYPES[teacher.precision]
        self.model, self.fusion = _outline(teacher), teacher.model.fusion
        self.rank, self.shards = 0, _parts(ranks, sharded)
        if self.shards > 1:
            kind, shape = self.device.type, (ranks.world // self.shards, self.shards)
            mesh = init_device_mesh(kind, shape, mesh_dim_names=("hosts", "host"))["host"]
            for block in self.model.all_blocks():
                fully_shard(block, mesh=mesh)
            fully_shard(self.model, mesh=mesh, reshard_after_forward=True)
            self.rank = mesh.get_local_rank()
        self.model._apply(
            lambda t: torch.empty_like(t, device=self.device) if t.is_meta else t.to(self.device)
        )
        self.held = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        data, size = recipe.data, sides(teacher.image_size)
        self.size = size if size != sides(data.image_size) else None
        self.scale = self.shift = None
        if (teacher.mean, teacher.std) != (data.mean, data.std):
            each = zip(data.mean, data.std, teacher.mean, teacher.std, strict=True)
            affine = [(s / its_s, (m - its_m) / its_s) for m, s, its_m, its_s in each]
            values = torch.tensor(affine, device=self.device).T.reshape(2, 1, -1, 1, 1)
            self.scale, self.shift = values.unbind()
        self.watch = Stopwatch(self.device)

    @torch.no_grad()
    def put(self, name: str, weight: Tensor) -> None:
        """Fill one weight, or this rank's rows of it, from all of it in float32."""
        held = self.held[name]
        if isinstance(held, DTensor):
            rows = -(-weight.shape[0] // self.shards)  # of all ranks but the last, as torch cuts
            weight = weight[self.rank * rows : (self.rank + 1) * rows]
            held = held.to_local()
        held.copy_(weight)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Its logits (B, K) float32 of the student's images (B, C, H, W), normalised and mixed.

        Resized where its size is another (bicubic, antialiased), then normalised anew where its
        mean or deviation is: mixing sums to 1, so that it may come before.
        """
        with self.watch.running():
            if self.size is not None:
                images = interpolate(images, self.size, mode="bicubic", antialias=True)
            if self.scale is not None and self.shift is not None:
                images = torch.addcmul(self.shift, images, self.scale)
            return self.model(images.to(self.dtype)).prediction(self.fusion).float()


def _outline(teacher: Teacher) -> Any:
    """A teacher in its precision, whose weights have no memory."""
    with init_empty_weights(include_buffers=False):
        model = teacher_model(teacher)
    return model.to(DTYPES[teacher.precision]).requires_grad_(False)


def _parts(ranks: Ranks, sharded: bool) -> int:
    """Ranks that a teacher's weights are cut over."""
    return (launched().here or ranks.world) if sharded else 1


def check_room(recipe: Recipe, ranks: Ranks, sharded: bool) -> None:
    """Compare the bytes of a teacher with what this rank's device has free.

    Raises:
        TooLarge: says both, and what to do.
    """
    assert (teacher := recipe.teacher) is not None
    parts = _parts(ranks, sharded)
    needed = sum(w.nbytes for w in _outline(teacher).parameters()) / parts
    if needed <= (room := room_of(ranks.device, launched().here or ranks.world)):
        return
    cut = "" if parts > 1 else "cut them over the ranks of a host by --teacher-sharding host"
    half = "" if teacher.precision == "bf16" else "halve them by --teacher.precision bf16"
    ways = ", ".join(filter(None, (cut, half, "or take a smaller teacher")))
    raise TooLarge(
        f"the teacher's weights take {needed / 1e9:.2f} GB of a rank, and its device "
        f"({ranks.device}) has {room / 1e9:.2f} GB free; {ways}"
    )


class Stopwatch:
    """Takes the time of what a device does, and has nobody wait for it but who reads it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.begin()

    def begin(self) -> None:
        """Start to measure anew."""
        self.calls, self.taken = 0, 0.0
        self.events: list[tuple[torch.Event, torch.Event]] = []

    @contextmanager
    def running(self) -> Generator[None]:
        """Something that is timed; on a device the first calls alone are, as events cost."""
        self.calls += 1
        if self.device.type == "cpu":
            began = time.perf_counter()
            yield
            self.taken += time.perf_counter() - began
        elif len(self.events) < MOST:
            pair = [torch.Event(self.device, enable_timing=True) for _ in range(2)]
            pair[0].record()
            yield
            pair[1].record()
            self.events.append((pair[0], pair[1]))
        else:
            yield

    def seconds(self) -> float:
        """Of all calls; waits for those that are timed."""
        if self.device.type == "cpu" or not self.events:
            return self.taken
        self.events[-1][1].synchronize()
        timed = sum(first.elapsed_time(last) for first, last in self.events) / 1e3
        return timed * self.calls / len(self.events)


def room_of(device: torch.device, here: int) -> float:
    """Bytes of a device that are free; of a CPU a rank's share of the host's memory.

    Args:
        here: ranks on this host.
    """
    if device.type == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / here
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return float("inf")  # nothing says it
