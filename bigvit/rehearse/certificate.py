"""What a rehearsal proved, and a real run beside it. No torch here."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bigvit.checkpoint import metrics
from bigvit.engines.check import check
from bigvit.plan.choose import Choice, Machines
from bigvit.plan.devices import find_device
from bigvit.plan.weights import heads
from bigvit.recipe import Command, Layout, batch_layout
from bigvit.recipe.parse import parse
from bigvit.recipe.store import differences, digest, filled, recipe_from_json, to_json
from bigvit.recipe.words import read_json

FORMAT = 1
APART = 0.1  # share by which memory and time may differ without a word
PACKAGES = ("bigvit", "torch", "deepspeed", "fairscale", "numpy")
A_RANK, A_SLICE = 1_500_000_000, 400  # bytes that a process of ours takes, and a rank's tensor
OF_THE_RUN = ("engine", "sharding", "checkpoint_activations", "compile")
FIELDS = {
    "format": int,
    "name": str,
    "recipe": dict,
    "ranks": int,
    "micro_batch": int,
    "accumulation": int,
    "run": dict,
    "versions": dict,
    "planned_memory": int,
}
"""What a certificate is compared by, and of which type."""


@dataclass(frozen=True)
class Asked:
    """What is to be rehearsed."""

    command: Command
    layout: Layout
    per_node: int
    rank: int


def asked(words: Sequence[str], ranks: int, per_node: int | None, rank: int) -> Asked:
    """What a command line asks for.

    Args:
        words: a recipe and overrides, as in training.
        per_node: ranks of a host; None: eight, or all where there are fewer.

    Raises:
        ValueError: says what was given, what is allowed and what to do.
    """
    command = parse(words, "bigvit rehearse")
    node = min(8, ranks) if per_node is None else per_node
    if ranks % node:
        raise ValueError(
            f"--ranks {ranks} is not a multiple of the {node} ranks of a host (--per-node); choose "
            "others"
        )
    if rank >= ranks:
        raise ValueError(f"--rank {rank} is not one of {ranks} ranks; it must be 0 to {ranks - 1}")
    layout = batch_layout(command.recipe, ranks, command.run.micro_batch)
    check(command.recipe, layout, command.run)
    _check_memory(command, ranks)
    return Asked(command, layout, node, rank)


def _check_memory(command: Command, ranks: int) -> None:
    """Refuse what would not fit into this machine: four processes, and lists of all pieces."""
    recipe = command.recipe
    ops = [*recipe.model.ops(recipe.data.image_size)]
    ops += [op for each in recipe.objectives for op in heads(each, recipe)]
    tensors = 4 * sum(op.times for op in ops)
    needed = 4 * A_RANK + A_SLICE * ranks * 2 * tensors
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > pages:
        raise ValueError(
            f"--ranks {ranks}: this rehearsal takes about {needed / 1e9:.0f} GB, and this machine "
            f"has {pages / 1e9:.0f}; choose fewer ranks"
        )


def certificate(of: Asked, found: Any, figures: Mapping[str, Any]) -> dict[str, Any]:
    """What was found, to be kept and compared.

    Args:
        found: `bigvit.rehearse.whole.Findings`.
    """
    command, layout = of.command, of.layout
    machines = Machines(find_device("h100-80gb"), layout.world, of.per_node, 0.0)
    planned = Choice(command.recipe, command.run, layout, machines)
    return {
        "format": FORMAT,
        "name": command.name,
        "digest": digest(command.recipe),
        "overrides": list(command.overrides),
        "ranks": layout.world,
        "per_node": of.per_node,
        "rank": of.rank,
        "micro_batch": layout.micro_batch,
        "accumulation": layout.accumulation,
        "run": _of_run(command),
        "versions": {name: version(name) for name in PACKAGES},
        "proved": found.proved,
        "failed": found.failed,
        "not_proved": found.not_proved,
        "planned_memory": planned.peak,
        **figures,
        "recipe": to_json(command.recipe),
    }


def _of_run(command: Command) -> dict[str, str]:
    run = command.run
    values = {name: str(getattr(run, name)) for name in OF_THE_RUN}
    return values | {"sharding": run.arrangement}


def read_certificate(path: Path) -> dict[str, Any]:
    """A certificate that `bigvit rehearse` wrote.

    Raises:
        ValueError: it is none.
    """
    try:
        value = read_json(path)
        for key, kind in FIELDS.items():
            if type(value[key]) is not kind:
                raise TypeError(f"{key} is {value[key]!r}")
        if value["format"] != FORMAT:
            raise ValueError(f"its format is {value['format']}, and this bigvit reads {FORMAT}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"--certificate {path}: it is none ({type(error).__name__}: {error}); `bigvit rehearse "
            "NAME --ranks N --out FILE` writes one"
        ) from None
    return value


def compare(certificate: Mapping[str, Any], run_dir: Path) -> Iterator[str]:
    """How a run in its first minute differs from what was rehearsed.

    Raises:
        ValueError: it is no run folder, or the run has not begun.
    """
    described = run_dir / "recipe.json"
    try:
        run = read_json(described)
        given, recipe = run["run"], recipe_from_json(run["recipe"])
        micro = given["micro_batch"]
        layout = batch_layout(recipe, run["world"], None if micro == "None" else int(micro))
        versions = run["versions"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"--run-dir {run_dir}: {described} says nothing of a run yet "
            f"({type(error).__name__}: {error})"
        ) from None
    for line in differences(certificate["recipe"], filled(run["recipe"])):
        yield f"the recipe differs from the one rehearsed: {line}"
    pairs = {
        "ranks": (certificate["ranks"], run["world"]),
        "micro-batch": (certificate["micro_batch"], layout.micro_batch),
        "micro-batches an update": (certificate["accumulation"], layout.accumulation),
        **{name: (value, given.get(name)) for name, value in certificate["run"].items()},
        **{
            f"version of {name}": (value, versions[name])
            for name, value in certificate["versions"].items()
            if name in versions
        },
    }
    for name, (rehearsed, real) in pairs.items():
        if rehearsed != real:
            yield f"{name}: {real}, and {rehearsed} in the rehearsal"
    for failed in certificate.get("failed", ()):
        yield f"the rehearsal itself failed: {failed['what']} ({failed['how']})"
    yield from _compare_metrics(certificate, run_dir / metrics.NAME)


def _compare_metrics(certificate: Mapping[str, Any], path: Path) -> Iterator[str]:
    """What the first updates took, beside what was planned."""
    lines = list(metrics.read_metrics(path)) if path.exists() else []
    if not any(line.kind == metrics.UPDATE for line in lines):
        yield f"{path} has no update yet: memory and speed could not be compared"
    planned = next((line.values for line in lines if line.kind == metrics.PLANNED), None)
    if planned is None:
        return
    measured, expected = planned["measured"], planned["planned"]
    if (memory := measured.get("memory")) is not None:
        if abs(memory / certificate["planned_memory"] - 1) > APART:
            yield (
                f"memory: {memory / 1e9:.1f} GB of a device in use, and "
                f"{certificate['planned_memory'] / 1e9:.1f} planned"
            )
    if measured["seconds"] > (1 + APART) * expected["seconds"]:
        yield (
            f"an update takes {1e3 * measured['seconds']:.4g} ms, and "
            f"{1e3 * expected['seconds']:.4g} were planned"
        )
