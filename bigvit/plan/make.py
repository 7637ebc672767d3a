"""From a command line to a plan. No torch here."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields

from bigvit.plan.calibration import HERE, measured
from bigvit.plan.choose import Choice, Machines, choices, remedies, smallest
from bigvit.plan.devices import Device, find_device
from bigvit.plan.report import Plan, images_per_core_second
from bigvit.recipe import Command, Recipe, Run, batch_layout
from bigvit.recipe.parse import parse

USUAL = "h100-80gb"
SLOWER = 1.1  # times as long that an update may take on fewer devices, where none are asked for
CHOSEN = ("engine", "sharding", "micro_batch", "checkpoint_activations")
"""Fields of a run that a plan chooses, where they are not given."""


def make_plan(
    words: Sequence[str],
    gpus: int | None,
    per_node: int | None,
    device: str | None,
    network: float,
    per_gpu_hour: float | None,
) -> Plan:
    """A plan.

    Args:
        words: a recipe and overrides, as in training.
        gpus: devices in all; None: the fewest of up to eight on which it is little slower.
        per_node: of a node; None: eight, or all where there are fewer.
        device: its name; None: the usual one.
        network: of a node, Gb/s.
        per_gpu_hour: price of a device's hour.

    Raises:
        ValueError: says what was given, what is allowed and what to do.
    """
    command = parse(words, "bigvit plan")
    name = device or USUAL
    found, feeding = _device(name)
    recipe, run = command.recipe, command.run
    _check_precision(recipe, name, found)
    fixed, most = _fixed(command), None
    if gpus is None:
        most = _usual(recipe)
        gpus = _enough(recipe, run, found, most, per_node, fixed)
    node = min(8, gpus) if per_node is None else per_node
    if gpus % node:
        raise ValueError(
            f"--gpus {gpus} is not a multiple of the {node} devices of a node (--per-node); give "
            f"{gpus // node * node or node} or {(gpus // node + 1) * node}, or another --per-node"
        )
    machines = Machines(found, gpus, node, network * 1e9 / 8)
    fitting = choices(recipe, run, machines, fixed)
    fed = images_per_core_second(recipe)
    return Plan(
        words[0],
        name,
        recipe,
        machines,
        fitting,
        [] if fitting else list(remedies(recipe, run, machines, fixed)),
        None if fitting else smallest(recipe, run, machines, fixed, offload=False),
        list(_on_fewer(recipe, run, machines, fixed)) if fitting else [],
        command.overrides,
        fed if feeding is None else fed * feeding,
        found.measured,
        per_gpu_hour,
        most,
    )


def _enough(
    recipe: Recipe, run: Run, device: Device, most: int, node: int | None, fixed: frozenset[str]
) -> int:
    """The fewest devices of one node, halved from the most on, on which the recipe fits and is
    little slower."""
    if node is not None and node != most:
        return most
    found: dict[int, float] = {}
    for gpus in {most >> halved for halved in range(most.bit_length())}:
        with suppress(ValueError):  # the batch does not divide over them
            if fitting := choices(recipe, run, Machines(device, gpus, gpus, 0.0), fixed):
                found[gpus] = fitting[0].clock.update
    least = min(found.values(), default=0.0)
    return min((g for g, seconds in found.items() if seconds <= SLOWER * least), default=most)


def _usual(recipe: Recipe) -> int:
    """At most a node of devices, over which the batch divides."""
    for gpus in range(8, 1, -1):
        with suppress(ValueError):
            batch_layout(recipe, gpus, None)
            return gpus
    return 1


def _device(name: str) -> tuple[Device, float | None]:
    """A device with what was measured of it, and how fast it is fed, over the model."""
    if (kept := measured(name)) is not None:
        return kept
    if name == HERE:
        raise ValueError(
            f"--gpu {HERE}: nothing was measured on this machine; `bigvit plan NAME --calibrate` "
            "does that"
        )
    return find_device(name), None


def _check_precision(recipe: Recipe, name: str, device: Device) -> None:
    if not device.peaks[recipe.precision]:
        able = [precision for precision, peak in device.peaks.items() if peak]
        raise ValueError(
            f"--gpu {name}: it has no {recipe.precision}, in which this recipe is trained; add "
            f"--precision {able[0]}, or choose another device"
        )


def _fixed(command: Command) -> frozenset[str]:
    """What was given of what a plan chooses."""
    given = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in command.overrides}
    assert all(name in {field.name for field in fields(Run)} for name in CHOSEN)
    return frozenset(given & set(CHOSEN))


def _on_fewer(
    recipe: Recipe, run: Run, machines: Machines, fixed: frozenset[str]
) -> Iterator[Choice]:
    """The best on half as many nodes, a quarter, ..., one."""
    nodes = machines.nodes
    while nodes > 1:
        nodes //= 2
        less = Machines(
            machines.device, nodes * machines.per_node, machines.per_node, machines.network
        )
        try:
            found = choices(recipe, run, less, fixed)
        except ValueError:
            return
        if not found:
            return
        yield found[0]
