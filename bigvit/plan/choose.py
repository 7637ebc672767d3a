"""Ways to run a recipe on given devices: what fits, what is fastest, and what to do where nothing
fits. No torch here."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile

from bigvit.engines.arrangement import NAMED
from bigvit.engines.check import check
from bigvit.plan.activations import kept_bytes, most_at_once
from bigvit.plan.clock import Clock, clock
from bigvit.plan.devices import DEVICES, GIB, Device
from bigvit.plan.follower import seen
from bigvit.plan.kept import weighing_bytes
from bigvit.plan.matrices import spread
from bigvit.plan.states import States, states
from bigvit.plan.teacher import temporary_bytes, weights_bytes
from bigvit.plan.traffic import traffic
from bigvit.plan.weights import hidden, weights_of
from bigvit.recipe import SGD, Layout, Recipe, Run
from bigvit.recipe.layout import batch_layout, micro_batches

CONTEXT = int(0.9 * GIB)  # bytes of a device's context, libraries and workspaces
CHANNELS = int(0.5 * GIB)  # bytes of NCCL's buffers, where there are several ranks
SPLINTERS = 0.03  # share of what is asked for that the allocator's blocks waste
SHARES = (0.0, 0.5, 1.0)  # of the blocks, recomputed
SHARDED = {
    "deepspeed": ("zero1", "zero0", "zero2", "zero3"),
    "fsdp2": ("full", "grads"),
}
NODES = {"deepspeed": "zero3_node", "fsdp2": "node"}
OFFLOADED = {"deepspeed": ("zero2_offload", "zero3_offload"), "fsdp2": ("full_offload",)}


@dataclass(frozen=True)
class Machines:
    """What a run has."""

    device: Device
    gpus: int
    per_node: int
    network: float  # bytes a second of a node, in one direction

    @property
    def nodes(self) -> int:
        return self.gpus // self.per_node


@dataclass(frozen=True)
class Choice:
    """A way to run a recipe, with what it takes."""

    recipe: Recipe
    run: Run
    layout: Layout
    machines: Machines

    @cached_property
    def states(self) -> States:
        return states(self.recipe, self.layout, self.run, self.machines.per_node)

    @cached_property
    def activations(self) -> int:
        """Bytes that backward needs."""
        share, images = self.run.checkpoint_activations, self.layout.micro_batch
        return kept_bytes(self.recipe, images, share) + self._of_views()

    def _of_views(self) -> int:
        """Bytes that backward needs of further views."""
        share, images = self.run.checkpoint_activations, self.layout.micro_batch
        return sum(kept_bytes(of, count * images, share) for of, count in seen(self.recipe))

    @cached_property
    def temporary(self) -> int:
        """Bytes of the largest that is there for a moment in forward or backward."""
        return self._at_once() - self.activations

    def _at_once(self, gradients: int = 0) -> int:
        share = self.run.checkpoint_activations
        own = most_at_once(self.recipe, self.layout.micro_batch, share, gradients)
        compared = self.activations + weighing_bytes(self.recipe, self.layout)
        return max(own + self._of_views(), compared)

    @cached_property
    def teacher(self) -> int:
        """Bytes of its weights."""
        return weights_bytes(self.recipe, self.layout, self.run, self.machines.per_node)

    @property
    def context(self) -> int:
        return CONTEXT + (CHANNELS if self.machines.gpus > 1 else 0)

    @cached_property
    def peak(self) -> int:
        """Bytes of a device that an update asks for at most. While backward goes on, activations
        are freed as gradients come; gradients of earlier micro-batches are there from the start."""
        held = self.states
        begun = held.gradients if self.layout.accumulation > 1 else 0
        backward = held.noted + begun + self._at_once(held.gradients - begun)
        most = held.kept + held.buckets + held.gathered + backward
        most = max(most, held.between + self._at_once(), held.step)
        cut = self.recipe, self.layout, self.run, self.machines.per_node
        most = max(most, max(held.between, held.kept + begun) + temporary_bytes(*cut))
        return self.context + int((1 + SPLINTERS) * (most + self.teacher))

    @property
    def fits(self) -> bool:
        return self.peak <= self.machines.device.memory

    @cached_property
    def clock(self) -> Clock:
        machines = self.machines
        sent = traffic(self.recipe, self.layout, self.run, machines.per_node)
        updated = self.states.updated
        found = spread(self.recipe, self.layout, self.run, machines.per_node)
        flops = 0 if found is None else max(found.flops)
        return clock(
            *(self.recipe, self.layout, self.run, machines.device),
            *(sent, updated, machines.network, flops),
        )

    @property
    def saved(self) -> int:
        """Bytes of a checkpoint: weights in float32, their moments, and the average."""
        recipe = self.recipe
        weights = weights_of(recipe)
        trained = sum(weight.size for weight in weights.trained)
        frozen = sum(weight.size for weight in weights.all) - trained
        single = sum(weight.size for weight in hidden(weights.trained))
        single = trained if isinstance(recipe.optim, SGD) else single
        kept = (3 + (recipe.ema is not None)) * trained - single
        return 4 * (kept + frozen + weights.statistics)

    @property
    def files(self) -> int:
        """Of a checkpoint: one of every rank that holds what no other does, and the manifest."""
        writers = self.machines.per_node if self.run.arrangement == "node" else self.machines.gpus
        return writers + 1

    @property
    def images_per_second(self) -> float:
        """Of all devices, if they never wait for data."""
        return self.recipe.batch_size / self.clock.update


def choices(
    recipe: Recipe, run: Run, machines: Machines, fixed: frozenset[str] = frozenset()
) -> list[Choice]:
    """The fastest that fits of each sharding, the fastest first; where two differ by less than a
    hundredth, what is plainer.

    Args:
        fixed: fields of `run` that are to stay as they are.

    Raises:
        ValueError: the batch does not divide over so many ranks, or the engine cannot do it.
    """
    batch_layout(recipe, machines.gpus, run.micro_batch)
    found: list[Choice] = []
    for way in _ways(recipe, run, machines, fixed, offload=False):
        if fitting := list(_largest(recipe, way, machines, fixed)):
            found.append(min(fitting, key=lambda choice: choice.clock.update))
    if not found:
        return []
    least = min(choice.clock.update for choice in found)
    return sorted(found, key=lambda choice: round(100 * choice.clock.update / least))


def smallest(
    recipe: Recipe, run: Run, machines: Machines, fixed: frozenset[str], offload: bool
) -> Choice:
    """What asks for the least memory."""
    return min(
        (
            next(_sizes(recipe, replace(way, checkpoint_activations=share), machines, fixed))
            for way in _ways(recipe, run, machines, fixed, offload)
            for share in _shares(run, fixed)[-1:]
        ),
        key=lambda choice: choice.peak,
    )


def remedies(
    recipe: Recipe, run: Run, machines: Machines, fixed: frozenset[str]
) -> Iterator[tuple[str, Choice]]:
    """What would fit where nothing does: offloading, more devices, larger ones."""
    offloaded = smallest(recipe, run, machines, fixed, offload=True)
    if offloaded.fits:
        yield "with moments and masters on the host", offloaded
    gpus = machines.gpus
    while (gpus := 2 * gpus) <= min(64 * machines.gpus, recipe.batch_size):
        more = replace(machines, gpus=gpus)
        try:
            batch_layout(recipe, gpus, None)
        except ValueError:
            break
        if (choice := smallest(recipe, run, more, fixed, offload=False)).fits:
            yield f"on {gpus} devices", choice
            break
    for name, device in sorted(DEVICES.items(), key=lambda item: item[1].memory):
        larger = replace(machines, device=device)
        if device.memory > machines.device.memory and device.peaks[recipe.precision]:
            if (choice := smallest(recipe, run, larger, fixed, offload=False)).fits:
                yield f"on {name}", choice
                break


def _ways(
    recipe: Recipe, run: Run, machines: Machines, fixed: frozenset[str], offload: bool
) -> Iterator[Run]:
    """Engines and shardings that can do it, the plainest first.

    Raises:
        ValueError: none can; why the first cannot.
    """
    layout, able = batch_layout(recipe, machines.gpus, None), False
    refused: ValueError | None = None
    engines = (run.engine,) if "engine" in fixed or "sharding" in fixed else tuple(SHARDED)
    for engine in engines:
        names = (OFFLOADED if offload else SHARDED).get(engine, ())
        if machines.nodes > 1 and not offload and engine in NODES:
            names = (*names, NODES[engine])
        if engine == "fairscale":
            names = tuple(NAMED[engine])
        if "sharding" in fixed or not names:
            names = (run.sharding,)
        for name in names:
            way = replace(run, engine=engine, sharding=name)
            try:
                check(recipe, layout, way)
            except ValueError as error:
                refused = refused or error
                continue
            able = True
            yield way
    if refused is not None and not able:
        raise refused


def _largest(
    recipe: Recipe, run: Run, machines: Machines, fixed: frozenset[str]
) -> Iterator[Choice]:
    """With the largest micro-batch that fits, for each share of blocks recomputed."""
    for share in _shares(run, fixed):
        way = replace(run, checkpoint_activations=share)
        sizes = _sizes(recipe, way, machines, fixed)
        if fitting := list(takewhile(lambda choice: choice.fits, sizes)):
            yield fitting[-1]


def _shares(run: Run, fixed: frozenset[str]) -> tuple[float, ...]:
    return (run.checkpoint_activations,) if "checkpoint_activations" in fixed else SHARES


def _sizes(recipe: Recipe, run: Run, machines: Machines, fixed: frozenset[str]) -> Iterator[Choice]:
    """Ascending micro-batches."""
    sizes = micro_batches(recipe, machines.gpus)
    if "micro_batch" in fixed and run.micro_batch is not None:
        sizes = [run.micro_batch]
    for size in sizes:
        layout = batch_layout(recipe, machines.gpus, size)
        yield Choice(recipe, replace(run, micro_batch=size), layout, machines)
