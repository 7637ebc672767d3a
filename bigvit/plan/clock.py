"""How long an update takes: the slower of arithmetic and memory traffic in every operation, or the
host's launches of them all; then the optimizer, and what the network does not hide.

docs/plan.md has every formula, and what they rest on. No torch here.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from bigvit.plan.activations import parts
from bigvit.plan.devices import Device
from bigvit.plan.follower import Group, seen
from bigvit.plan.follower import asked as asked_of_follower
from bigvit.plan.teacher import asked
from bigvit.plan.traffic import Collective
from bigvit.plan.weights import BYTES, WIDE
from bigvit.recipe import SGD, Lamb, Layout, Muon, Recipe, Run
from bigvit.recipe.models.ops import Op

LATENCY = 20e-6  # seconds of a collective, whatever it sends
LINKED = 0.8  # share of a link's or network's bandwidth that collectives reach
HIDDEN = 0.8  # share of the backward pass behind which collectives can hide
TIMES_SENT = {"all-reduce": 2.0}  # times that a collective sends its tensor; others once


class Passes(NamedTuple):
    """What an operation does besides products of matrices, an element of its input."""

    forward: float  # bytes read and written
    backward: float
    launches: tuple[int, int]  # forward, backward


@dataclass(frozen=True)
class Clock:
    """Seconds of an update on one device. The first three exclude each other: the slower counts."""

    arithmetic: float  # in products that the device's arithmetic bounds
    memory: float  # in what its memory's bandwidth bounds
    launches: float  # of the host, for the same operations
    optimizer: float
    network: float  # what is not hidden behind the backward pass
    teacher: float  # its forward pass
    follower: float  # its forward passes

    @property
    def update(self) -> float:
        """Seconds of an update that never waits for data."""
        passes = max(self.arithmetic + self.memory, self.launches)
        return passes + self.optimizer + self.network + self.teacher + self.follower

    @property
    def bound(self) -> str:
        """What takes most of it."""
        memory = self.memory + self.optimizer
        parts = {"arithmetic": self.arithmetic, "memory traffic": memory, "network": self.network}
        if self.launches > self.arithmetic + self.memory:
            parts = {"launches": self.launches, "network": self.network}
        parts |= {"teacher": self.teacher, "follower": self.follower}
        return max(parts, key=lambda name: parts[name])


def passes(kind: str, width: int, compiled: bool) -> Passes:
    """Passes over an operation's input: what torch's kernels read and write one by one, or one
    fused kernel where blocks are compiled.

    Args:
        width: bytes of a number in the weights' type.
    """
    cast = WIDE + width if width < WIDE else 0
    match kind:
        case "norm" | "batch norm" if compiled:
            return Passes(WIDE + width, width + 3 * WIDE, (1, 2))
        case "norm" | "batch norm":
            return Passes(2 * WIDE + cast, cast + 5 * WIDE, (4, 4))
        case "scale" if compiled:
            return Passes(width + WIDE, WIDE + 2 * width, (0, 1))
        case "scale":
            return Passes(width + WIDE, 5 * WIDE + width + cast, (2, 5))
        case "activation":
            return Passes(2 * width, 3 * width, (1, 1))
        case "attention":  # q, k and v read, and as much of them as of q written
            return Passes(4 / 3 * width, 8 / 3 * width, (2, 3))
        case "stream" | "shared":  # a norm, and the branch is added to the stream in the end
            norm = passes("norm", width, compiled)
            ahead, back = norm.launches
            both = (ahead + 1, back + 1)
            return Passes(norm.forward + 3 * WIDE, norm.backward + 3 * WIDE, both)
        case _:
            return Passes(0, 0, (0, 0))


GATHER = Passes(2 * WIDE, 3 * WIDE, (1, 2))  # of samples whose branch is computed


class Sum(NamedTuple):
    """Seconds of the device for a pass over some operations, by what bounds each; launches."""

    arithmetic: float = 0.0
    memory: float = 0.0
    launches: float = 0.0

    def plus(self, other: "Sum", times: float = 1.0) -> "Sum":
        """This, and so many times the other."""
        return Sum(*(mine + times * its for mine, its in zip(self, other, strict=True)))


class Speed(NamedTuple):
    """What a device reaches."""

    products: float  # FLOPs a second
    copies: float  # bytes a second read and written
    width: int  # bytes of a number in the weights' type
    compiled: bool

    def moved(self, elements: float, bytes_each: float, launches: float) -> Sum:
        """A pass over so many elements."""
        return Sum(0.0, elements * bytes_each / self.copies, launches)

    def product(self, op: Op, images: float) -> Sum:
        """An operation's product of matrices, the slower of its arithmetic and its traffic."""
        rows, inputs, outputs = op.shape or (0, 0, 0)
        touched = self.width * (rows * images * (inputs + outputs) + inputs * outputs)
        arithmetic, memory = 2 * op.macs * images / self.products, touched / self.copies
        slower = Sum(arithmetic, 0.0, 1) if arithmetic >= memory else Sum(0.0, memory, 1)
        return slower if op.macs else Sum()

    def forward(self, op: Op, images: float, skips: bool) -> Sum:
        """One operation on so many images.

        Args:
            skips: whether it works on the kept samples, which are gathered from all.
        """
        each, elements = passes(op.kind, self.width, self.compiled), images * _elements(op)
        found = self.product(op, images).plus(self.moved(elements, each.forward, each.launches[0]))
        if skips and op.kind in ("stream", "shared"):
            found = found.plus(self.moved(elements, GATHER.forward, GATHER.launches[0]))
        return found

    def backward(self, op: Op, images: float, skips: bool, gradients: int) -> Sum:
        """Its gradients, of its weights, its input or both."""
        each, elements = passes(op.kind, self.width, self.compiled), images * _elements(op)
        found = self.moved(elements, each.backward, each.launches[1])
        found = found.plus(self.product(op, images), gradients)
        if op.shape and gradients:  # of the bias
            rows, _, outputs = op.shape
            found = found.plus(self.moved(images * rows * outputs, self.width, 1))
        if skips and op.kind in ("stream", "shared"):
            found = found.plus(self.moved(elements, GATHER.backward, GATHER.launches[1]))
        return found


def _elements(op: Op) -> int:
    return op.wide if op.kind in ("norm", "batch norm", "stream", "shared") else op.kept


def speed(device: Device, precision: str, compiled: bool) -> Speed:
    """What a device reaches in a recipe's precision."""
    products = device.peaks[precision] * device.products
    return Speed(products, device.bandwidth * device.copies, BYTES[precision], compiled)


def clock(
    recipe: Recipe,
    layout: Layout,
    run: Run,
    device: Device,
    sent: Iterable[Collective],
    updated: int,
    network: float,
    flops: int = 0,
) -> Clock:
    """An update of a rank.

    Args:
        updated: parameters that this rank's optimizer changes.
        flops: of its Newton-Schulz iterations.
        network: bytes a second of a node's network, in one direction.
    """
    at, ahead, back = speed(device, recipe.precision, run.compile), Sum(), Sum()
    for of, views in (Group(recipe, 1), *seen(recipe)):
        for part in parts(of, run.checkpoint_activations):
            blocks, twice = len(part.shares), sum(part.again)
            images = views * layout.micro_batch * sum(part.shares) / blocks
            for op, gradients, _ in part.steps:
                once = at.forward(op, images, part.skips)
                ahead = ahead.plus(once, blocks)
                back = back.plus(at.backward(op, images, part.skips, gradients), blocks)
                back = back.plus(once, twice)
    hidden = HIDDEN * max(back.arithmetic + back.memory, back.launches * device.launch)
    whole, n = ahead.plus(back), layout.accumulation
    return Clock(
        n * whole.arithmetic,
        n * whole.memory,
        n * whole.launches * device.launch,
        _optimizer(recipe, updated) / at.copies + _iterations(recipe, flops, device),
        network_seconds(sent, device.link, network, hidden),
        n * _asking(recipe, layout.micro_batch, device),
        n * _following(recipe, layout.micro_batch, run.compile, device),
    )


def _following(recipe: Recipe, images: int, compiled: bool, device: Device) -> float:
    """Seconds of a follower's forward passes. Gathering its weights, where they are cut, is not
    counted."""
    at, spent = speed(device, recipe.precision, compiled), Sum()
    for of, views in asked_of_follower(recipe):
        for part in parts(of, 0.0):
            for op, *_ in part.steps:
                once = at.forward(op, views * images, skips=False)
                spent = spent.plus(once, len(part.shares))
    return max(spent.arithmetic + spent.memory, spent.launches * device.launch)


def _asking(recipe: Recipe, images: int, device: Device) -> float:
    """Seconds of a teacher's forward pass, if there is a teacher. Gathering its weights, where they
    are cut, is not counted."""
    if (its := asked(recipe)) is None:
        return 0.0
    at, spent = speed(device, its.precision, compiled=False), Sum()
    if not its.model.described:
        return 2 * its.model.macs(its.data.image_size) * images / at.products
    for part in parts(its, 0.0):
        for op, *_ in part.steps:
            spent = spent.plus(at.forward(op, images, skips=False), len(part.shares))
    return max(spent.arithmetic + spent.memory, spent.launches * device.launch)


def _optimizer(recipe: Recipe, updated: int) -> float:
    """Bytes that clipping, the optimizer and the average read and write."""
    one = isinstance(recipe.optim, SGD)  # has one moment
    numbers = (
        5 if one else 3 + 1 + 3
    )  # master and two moments read and written, and the gradient read
    # (of Muon's matrices one moment, and the gradient once more each way: as much)
    if isinstance(recipe.optim, Lamb):
        numbers += 2 + 1  # the direction, and the weights once more for their norm
    if recipe.clip_norm is not None:
        numbers += 1 + 2
    numbers += 0 if recipe.ema is None else 3
    working = BYTES[recipe.precision] if recipe.precision != "fp32" else 0
    return updated * (WIDE * numbers + working)


def _iterations(recipe: Recipe, flops: int, device: Device) -> float:
    """Seconds of Muon's products of matrices, in their own precision."""
    if not isinstance(recipe.optim, Muon):
        return 0.0
    kind = recipe.optim.ns_precision if device.peaks[recipe.optim.ns_precision] else "fp32"
    return flops / speed(device, kind, compiled=False).products


def network_seconds(
    sent: Iterable[Collective], link: float, network: float, hidden: float
) -> float:
    """Seconds that an update's collectives take, but for what hides behind the backward passes. A
    ring passes through each node once.

    Args:
        network: bytes a second of a node's network, in one direction.
        hidden: seconds of each micro-batch behind which those that overlap can hide.
    """
    seen, behind = 0.0, defaultdict[int, float](float)
    for each in sent:
        bandwidth = LINKED * (min(link, network / each.through) if each.through else link)
        ways = TIMES_SENT.get(each.kind, 1.0) * (each.ranks - 1) / each.ranks
        ways = 1.0 if each.kind == "all-to-all" else ways  # it is what goes to others
        seconds = each.times * LATENCY + ways * each.total / bandwidth
        if each.overlaps:
            behind[each.spread] += seconds
        else:
            seen += seconds
    for last in range(max(behind, default=0)):  # micro-batches, the last one first
        sent_in_it = sum(all_ / spread for spread, all_ in behind.items() if spread > last)
        seen += max(0.0, sent_in_it - hidden)
    return seen
