"""What `--sharding` means to engines other than DeepSpeed. No torch here."""

from dataclasses import dataclass

from bigvit.ranks.launched import launched
from bigvit.recipe import Layout, Run
from bigvit.recipe.bounds import shown


@dataclass(frozen=True)
class FSDP2:
    """How `fully_shard` spreads a model."""

    reshard_after_forward: bool = True  # gathered weights are freed, and gathered again in backward
    within_hosts: bool = False  # every host holds the whole model, cut over its own ranks
    offload: bool = False  # weights, gradients and moments lie on the host


FSDP2_NAMES = {
    "full": FSDP2(),
    "grads": FSDP2(reshard_after_forward=False),
    "node": FSDP2(within_hosts=True),
    "full_offload": FSDP2(offload=True),
}


def named(run: Run, layout: Layout) -> FSDP2:
    """The arrangement that a run asks for.

    Raises:
        ValueError: there is none of that name for the engine, or not with these ranks.
    """
    name = run.arrangement
    if name not in FSDP2_NAMES:
        raise ValueError(
            f"--sharding {shown(name)} with --engine fsdp2: it has {', '.join(FSDP2_NAMES)}; "
            "DeepSpeed's names and files are for --engine deepspeed"
        )
    here = launched().here
    if FSDP2_NAMES[name].within_hosts and here and layout.world % here:
        raise ValueError(
            f"--sharding {name}: {layout.world} ranks, {here} of them on this host; it needs "
            "hosts with equally many ranks each; use --sharding full"
        )
    return FSDP2_NAMES[name]
