"""What a plan says of a run, beside what its first updates take."""

import time
from typing import Any

import torch

from bigvit.plan.calibration import HERE, measured
from bigvit.plan.choose import Choice, Machines
from bigvit.plan.devices import Device, find_device, known_as
from bigvit.plan.follower import trained_macs
from bigvit.ranks.joining import Ranks
from bigvit.ranks.launched import launched
from bigvit.recipe import Command, Layout

FIRST, LAST = 2, 10  # updates after which time is taken: the first ones compile and allocate
APART = 0.1  # share by which a plan may differ without a word
NETWORK = 400e9 / 8  # bytes a second between hosts, which nothing here can see


class Foreseen:
    """A run on a device that is known, and how its first updates go."""

    def __init__(self, choice: Choice, device: torch.device, batch: int) -> None:
        """Args: batch: global batches that were consumed before."""
        self.choice, self.device, self.before = choice, device, batch
        self.macs = trained_macs(choice.recipe)
        self.began = self.waited = 0.0

    def begins(self, batch: int) -> None:
        """Training goes on from an earlier batch: where its first updates come again, they are
        measured again."""
        if batch < self.before + LAST:
            self.before = batch

    def use(self, images_per_second: float) -> dict[str, float]:
        """Shares of the devices' peak: of FLOPs that are executed, and of those that there would be
        if no sample was skipped. What is recomputed is not counted."""
        recipe, machines = self.choice.recipe, self.choice.machines
        peak = machines.device.peaks[recipe.precision] * machines.gpus / images_per_second
        executed = 2 * (self.macs.forward + self.macs.backward)
        return {"flops_use": executed / peak, "dense_flops_use": 6 * self.macs.dense / peak}

    def waits(self, seconds: float) -> None:
        """Training waited for images."""
        self.waited += seconds

    def updated(self, batch: int) -> dict[str, Any] | None:
        """A batch was consumed.

        Returns:
            After the last of the first updates what was planned and measured: seconds of an update
            and bytes of a device (None: nobody knows), and the share of time spent on waiting.
        """
        if batch == self.before + FIRST:
            self.began, self.waited = time.perf_counter(), 0.0
        if batch != self.before + LAST:
            return None
        spent = time.perf_counter() - self.began
        found = {"seconds": spent / (LAST - FIRST), "memory": _memory_given(self.device)}
        planned = {"seconds": self.choice.clock.update, "memory": self.choice.peak}
        return {"planned": planned, "measured": found, "waiting": self.waited / spent}


def told(line: dict[str, Any]) -> str:
    """What `Foreseen.updated` returned, as a person reads it."""
    planned, found, said = line["planned"], line["measured"], list[str]()
    if (memory := found["memory"]) is not None:
        peak = planned["memory"]
        said.append(f"memory {memory / 1e9:.1f} GB, planned {peak / 1e9:.1f}")
        if abs(memory / peak - 1) > APART:
            said[-1] += " (`bigvit plan` says for what; other processes' counts, too)"
    took, expected = found["seconds"], planned["seconds"]
    said.append(f"an update {1e3 * took:.4g} ms, planned {1e3 * expected:.4g}")
    apart = not 1 / (1 + APART) <= took / expected <= 1 + APART
    if apart and 2 * line["waiting"] * took > took - expected > 0:
        said[-1] += f" ({100 * line['waiting']:.0f} % of it waiting for images: more --workers)"
    elif apart:
        said[-1] += " (`bigvit plan --calibrate` measures this device, --profile traces updates)"
    return f"the first {LAST} updates: {'; '.join(said)}"


def foreseen(command: Command, layout: Layout, ranks: Ranks, batch: int) -> Foreseen | None:
    """A run, if its device is known, or was measured.

    Args:
        batch: global batches that were consumed before.
    """
    device = _device(ranks.device)
    if not command.recipe.model.described:
        return None
    if device is None or not device.peaks.get(command.recipe.precision):
        return None
    machines = Machines(device, layout.world, launched().here or layout.world, NETWORK)
    choice = Choice(command.recipe, command.run, layout, machines)
    return Foreseen(choice, ranks.device, batch)


def _memory_given(device: torch.device) -> int | None:
    """Bytes of a device that are in use, by all processes: what an allocator once had it keeps."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def device_name(device: torch.device) -> str:
    """What a rank's device is called."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return device.type


def _device(device: torch.device) -> Device | None:
    name: str | None = HERE
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name = known_as(properties.name, properties.total_memory) or HERE
    if (kept := measured(name)) is not None:
        return kept[0]
    return find_device(name) if name != HERE else None
