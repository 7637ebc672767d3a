"""A plan as a person reads it, and as a program does. No torch here."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from typing import Any

from bigvit.plan.activations import executed_macs
from bigvit.plan.choose import Choice, Machines
from bigvit.plan.follower import trained_macs
from bigvit.plan.weights import head_of, size_of
from bigvit.recipe import Digits, Images, Recipe, sides

GB = 1e9
SHOWN = 5  # choices in the table
# seconds of a core for an image (measured on one Xeon, docs/performance.md): whatever its size,
# each kilobyte of its JPEG, each pixel that it is resized to
AN_IMAGE, A_KILOBYTE, A_PIXEL = 0.39e-3, 8.4e-6, 11.7e-9
JPEG = 110  # kilobytes of an ImageNet photograph
TO_HOST = 12e9  # bytes a second from a device to the host's memory


@dataclass(frozen=True)
class Plan:
    """What was asked, and what was found."""

    name: str
    device: str  # its name
    recipe: Recipe
    machines: Machines
    choices: Sequence[Choice]  # those that fit, the fastest first
    remedies: Sequence[tuple[str, Choice]]  # what would fit, where nothing does
    least: Choice | None  # what asks for the least memory, where nothing fits
    fewer: Sequence[Choice]  # the best on fewer nodes, down to one
    overrides: tuple[str, ...]  # of the recipe's fields and the run's, as given
    images_per_core_second: float  # that a data worker prepares
    measured: bool  # whether that and the device's speeds were measured
    per_gpu_hour: float | None
    most: int | None  # devices at most, where their number was not given


def images_per_core_second(recipe: Recipe) -> float:
    """What a core feeds of JPEGs of 110 KB, as modelled."""
    data = recipe.data
    pixels = prod(sides(data.image_size))
    pixels += sum(each.count * prod(sides(each.image_size)) for each in data.groups)
    seconds = AN_IMAGE + A_PIXEL * pixels
    seconds += 0 if isinstance(data, Digits) else A_KILOBYTE * JPEG
    return 1 / seconds


def as_json(plan: Plan) -> dict[str, Any]:
    """Bytes, seconds, FLOPs."""
    macs = trained_macs(plan.recipe)
    return {
        "recipe": plan.name,
        "device": plan.device,
        "gpus": plan.machines.gpus,
        "per_node": plan.machines.per_node,
        "network": plan.machines.network,
        "calibrated": plan.measured,
        "modelled": "memory and time are computed, not measured",
        "parameters": size_of(plan.recipe).parameters,
        "head_parameters": head_of(plan.recipe).parameters,
        "flops_per_image": {
            "dense": 6 * macs.dense,
            "executed": 2 * (macs.forward + macs.backward),
        },
        "choices": [_choice(plan, choice) for choice in plan.choices],
        "would_fit": [{"how": how, **_choice(plan, choice)} for how, choice in plan.remedies],
        "fewer_nodes": [
            {"nodes": choice.machines.nodes, "images_per_second": choice.images_per_second}
            for choice in plan.fewer
        ],
    }


def _choice(plan: Plan, choice: Choice) -> dict[str, Any]:
    clock, training = choice.clock, _training(plan, choice)
    return {
        "engine": choice.run.engine,
        "sharding": choice.run.arrangement,
        "micro_batch": choice.layout.micro_batch,
        "accumulation": choice.layout.accumulation,
        "checkpoint_activations": choice.run.checkpoint_activations,
        "gpus": choice.machines.gpus,
        "bytes": {**dict(_bytes(choice)), "peak": choice.peak},
        "memory": choice.machines.device.memory,
        "seconds": {**vars(clock), "update": clock.update},
        "bound_by": clock.bound,
        "images_per_second": choice.images_per_second,
        "flops_use": _use(plan, choice),
        "cores": choice.images_per_second / plan.images_per_core_second,
        "epoch_seconds": training.epoch,
        "gpu_hours": training.gpu_hours,
        "price": training.price,
        "checkpoint": {
            "bytes": choice.saved,
            "files": choice.files,
            "stall_seconds": _stall(choice),
        },
        "command": command(plan, choice),
    }


def lines(plan: Plan) -> Iterator[str]:
    """What `bigvit plan` prints before its table: the model, and the batch."""
    recipe, machines = plan.recipe, plan.machines
    macs = trained_macs(recipe)
    done = 2 * (macs.forward + macs.backward)
    network = f", {machines.network * 8 / 1e9:g} Gb/s a node" if machines.nodes > 1 else ""
    where = f"{machines.gpus} x {plan.device}"
    if machines.nodes > 1:
        where += f" on {machines.nodes} nodes of {machines.per_node}"
    yield f"{plan.name} on {where}{network}: modelled{_basis(plan)}"
    if plan.most is not None and machines.gpus < plan.most:
        yield (
            f"devices: {machines.gpus}, as an update is at most a tenth faster on up to "
            f"{plan.most}; --gpus N plans for N"
        )
    skipped = f", {_flops(done)} executed" if done < 5.99 * macs.dense else ""
    head = "" if recipe.dense is None else f" ({head_of(recipe).parameters:,} of its head)"
    yield (
        f"model: {size_of(recipe).parameters:,} parameters{head}; "
        f"{_flops(6 * macs.dense)} an image, forward and backward{skipped}"
    )


def _basis(plan: Plan) -> str:
    if plan.measured:
        return ", from speeds that were measured on this device (--calibrate)"
    return ", from the maker's figures (--calibrate measures a device that is there)"


HEADS = (
    *("", "engine", "sharding", "micro-batch", "recomputed", "GB a rank", "ms an update"),
    *("images/s", "FLOPs used", "bound by"),
)


def rows(plan: Plan) -> list[tuple[str, ...]]:
    """The table of choices."""
    return [
        (
            str(i),
            choice.run.engine,
            choice.run.arrangement,
            f"{choice.layout.micro_batch} x {choice.layout.accumulation}",
            f"{100 * choice.run.checkpoint_activations:.0f} %",
            f"{choice.peak / GB:.1f}",
            f"{1e3 * choice.clock.update:.0f}",
            f"{choice.images_per_second:,.0f}",
            f"{100 * _use(plan, choice):.0f} %",
            choice.clock.bound,
        )
        for i, choice in enumerate(plan.choices[:SHOWN], 1)
    ]


def details(plan: Plan) -> Iterator[str]:
    """What it prints below the table, of the first choice."""
    if not plan.choices:
        yield from _nothing_fits(plan)
        return
    choice = plan.choices[0]
    training, clock = _training(plan, choice), choice.clock
    memory = choice.machines.device.memory
    held = "; ".join(f"{name} {size / GB:.2f}" for name, size in _bytes(choice) if size)
    yield f"memory a rank, GB: {held}; peak {choice.peak / GB:.1f} of {memory / GB:.1f}"
    parts = ", ".join(f"{name} {1e3 * s:.1f}" for name, s in vars(clock).items() if s)
    yield f"an update, ms: {parts}; launches run beside the device, the slower of both counts"
    yield (
        f"training: an epoch {_time(training.epoch)}, {plan.recipe.epochs} epochs "
        f"{_time(training.seconds)}; {training.gpu_hours:,.0f} GPU-hours{_price(training.price)}"
    )
    cores = choice.images_per_second / plan.images_per_core_second
    yield (
        f"data: {choice.images_per_second:,.0f} images/s need {cores:,.1f} cores, "
        f"{cores / choice.machines.nodes:,.1f} a node, at {plan.images_per_core_second:,.0f} "
        "images/s and core"
    )
    yield (
        f"checkpoint: {choice.saved / GB:.2f} GB in {choice.files} files; training stands still "
        f"for {_stall(choice):.2f} s"
    )
    yield from _nodes(plan, choice)
    yield f"start it: {command(plan, choice)}"


def _nothing_fits(plan: Plan) -> Iterator[str]:
    least = plan.least
    assert least is not None
    memory = least.machines.device.memory
    yield (
        f"nothing fits: the least is {least.peak / GB:.1f} GB a rank of {memory / GB:.1f}, with "
        f"{least.run.engine} {least.run.arrangement}, micro-batch {least.layout.micro_batch}, "
        f"{100 * least.run.checkpoint_activations:.0f} % of the blocks recomputed"
    )
    for how, choice in plan.remedies:
        yield (
            f"would fit {how}: {choice.peak / GB:.1f} GB a rank, with {choice.run.engine} "
            f"{choice.run.arrangement}, micro-batch {choice.layout.micro_batch}"
        )
    if not plan.remedies:
        yield "nor would it on more or larger devices that are known here: take a smaller model"


def _nodes(plan: Plan, choice: Choice) -> Iterator[str]:
    """Whether so many nodes are worth it."""
    faster = [other for other in plan.fewer if other.images_per_second > choice.images_per_second]
    if faster:
        best = max(faster, key=lambda other: other.images_per_second)
        nodes = best.machines.nodes
        yield (
            f"more nodes are slower: {nodes} node{'s' * (nodes > 1)} of "
            f"{best.machines.per_node} would do {best.images_per_second:,.0f} images/s"
        )
    elif plan.fewer:
        one = plan.fewer[-1]
        share = choice.images_per_second / one.images_per_second
        share *= one.machines.nodes / choice.machines.nodes
        yield f"scaling: {100 * share:.0f} % of {choice.machines.nodes} times one node's images/s"


def command(plan: Plan, choice: Choice) -> str:
    """The command line of a choice."""
    run, machines = choice.run, choice.machines
    words = ["deepspeed"]
    if machines.nodes > 1:
        words += ["--hostfile", "hosts"]
    elif machines.gpus > 1:
        words += ["--num_accelerators", str(machines.gpus)]
    words += ["scripts/train.py", plan.name]
    given = {word.partition("=")[0] for word in plan.overrides}
    if run.data_root is None and not isinstance(plan.recipe.data, Digits):
        words += ["--data-root", "DATA"]
    if plan.recipe.teacher is not None and run.teacher is None:
        words += ["--teacher", "WEIGHTS"]
    if plan.recipe.maps and run.label_maps is None:
        words += ["--label-maps", "MAPS"]
    if run.engine != "deepspeed" and "--engine" not in given:
        words += ["--engine", run.engine]
    if run.sharding is not None and "--sharding" not in given:
        words += ["--sharding", run.sharding]
    if "--micro-batch" not in given:
        words += ["--micro-batch", str(choice.layout.micro_batch)]
    if run.checkpoint_activations and "--checkpoint-activations" not in given:
        words += ["--checkpoint-activations", f"{run.checkpoint_activations:g}"]
    return shlex.join([*words, *plan.overrides])


@dataclass(frozen=True)
class _Training:
    epoch: float  # seconds, with its evaluation
    seconds: float
    gpu_hours: float
    price: float | None


def _training(plan: Plan, choice: Choice) -> _Training:
    recipe, data = plan.recipe, plan.recipe.data
    tested = 0 if isinstance(data, Digits) else (data.test_images or 0)
    tested *= 1 if isinstance(data, Images | Digits) else data.windows
    macs = trained_macs(recipe)
    own = choice.clock.update - choice.clock.teacher - choice.clock.follower
    share = executed_macs(recipe).dense / (macs.forward + macs.backward)
    forward = own / recipe.batch_size * share
    evaluation = tested * forward / choice.run.evaluate_every
    epoch = recipe.updates_per_epoch * choice.clock.update + evaluation
    saved = recipe.updates // choice.run.checkpoint_every * _stall(choice)
    seconds = recipe.epochs * epoch + saved
    hours = seconds / 3600 * choice.machines.gpus
    price = None if plan.per_gpu_hour is None else hours * plan.per_gpu_hour
    return _Training(epoch, seconds, hours, price)


def _bytes(choice: Choice) -> Iterator[tuple[str, int]]:
    held = choice.states
    for name in ("weights", "masters", "moments", "average", "buffers", "gradients", "buckets"):
        yield name, getattr(held, name)
    if held.follower:
        yield "follower", held.follower
    if held.remembered:
        yield "memory and centre", held.remembered + held.noted
    yield "gathered weights", held.gathered
    yield "teacher", choice.teacher
    yield "activations", choice.activations
    yield "largest temporary", choice.temporary
    yield "context", choice.context


def _use(plan: Plan, choice: Choice) -> float:
    """Share of the device's peak that goes into FLOPs that are executed and not repeated."""
    macs = trained_macs(plan.recipe)
    done = 2 * (macs.forward + macs.backward) * choice.images_per_second / choice.machines.gpus
    return done / choice.machines.device.peaks[plan.recipe.precision]


def _stall(choice: Choice) -> float:
    """Seconds of a copy of a rank's part to the host."""
    return choice.saved / choice.machines.gpus / TO_HOST


def _flops(number: float) -> str:
    unit, name = (1e12, "T") if number >= 1e12 else (1e9, "G") if number >= 1e9 else (1e6, "M")
    return f"{number / unit:.4g} {name}FLOPs"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return str(timedelta(seconds=round(seconds)))


def _price(price: float | None) -> str:
    return "" if price is None else f", {price:,.0f} in the unit of --per-gpu-hour"
