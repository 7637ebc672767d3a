"""Errors of the device that a person can do something about: what they mean, and the way out."""

from bigvit.engines.deepspeed.config import offloads, read_sharding, stage_of
from bigvit.ranks.memory import wanting
from bigvit.recipe import Command, Layout, Run, micro_batches

NO_KERNEL = " does not have a deterministic implementation"


def explained(error: RuntimeError, command: Command, layout: Layout, place: str) -> str:
    """What an error that a rank met at a place means; nothing where it is another one."""
    text = str(error)
    if NO_KERNEL in text:
        name = text.partition(NO_KERNEL)[0]
        return f"{place}: {name} has no kernel for --deterministic here; leave that out"
    if not (said := wanting(error)):
        return ""
    first, *rest = _ways(command, layout, place)
    then = f"; if that is not enough, {', then '.join(rest)}" if rest else ""
    return f"{place}: {said}; use {first}{then}"


def _ways(command: Command, layout: Layout, place: str) -> list[str]:
    """What to change, the cheapest first: less activations where these were made, or less state."""
    run, ways = command.run, list[str]()
    update, evaluation = (place.startswith(word) for word in ("update", "the evaluation"))
    if update or evaluation:
        sizes = micro_batches(command.recipe, layout.world)
        if smaller := [size for size in sizes if size <= layout.micro_batch / 2]:
            ways.append(f"--micro-batch {smaller[-1]} ({layout.micro_batch} now)")
    if update and (share := run.checkpoint_activations) < 1:
        ways.append(f"--checkpoint-activations 1 ({share:g} now)")
    return [*ways, _sharding(run, layout.world)]


LESS = {"grads": "full", "node": "full", "full": "full_offload", "oss": "sdp"}
"""Of the other engines' arrangements, the next that keeps less on each device."""


def _sharding(run: Run, world: int) -> str:
    """The next arrangement that keeps less of the state on each device."""
    now = run.arrangement
    if run.engine == "single":
        return "--engine deepspeed"
    if run.engine != "deepspeed":
        less = f"--sharding {LESS[now]} ({now} now)" if now in LESS else "more GPUs"
        return "--engine fsdp2" if now == "sdp" else less
    config = read_sharding(now)
    stage = stage_of(config)
    if offloads(config):
        return "more GPUs"
    if world > 1 and stage < (2 if run.compile else 3):
        name = f"zero{stage + 1}"
    else:
        name = "zero3_offload" if stage == 3 else "zero2_offload"
    return f"--sharding {name} ({now} now)"
