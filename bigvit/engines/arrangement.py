"""What `--sharding` means to the engines that are not DeepSpeed. No torch here."""

from dataclasses import dataclass

from bigvit.ranks.launched import launched
from bigvit.recipe import Layout, Run
from bigvit.recipe.bounds import shown


@dataclass(frozen=True)
class Arrangement:
    """Where the pieces of a model lie."""

    whole_weights: bool = False  # gathered weights stay until the backward pass has used them
    whole_gradients: bool = False  # gradients are reduced to every rank, not to one
    within_hosts: bool = False  # every host holds the whole model, cut over its own ranks
    offload: bool = False  # weights, gradients and moments lie on the host


NAMED = {
    "fsdp2": {
        "full": Arrangement(),
        "grads": Arrangement(whole_weights=True),
        "node": Arrangement(within_hosts=True),
        "full_offload": Arrangement(offload=True),
        "node_offload": Arrangement(within_hosts=True, offload=True),
    },
    "fairscale": {
        "oss": Arrangement(whole_weights=True, whole_gradients=True),
        "sdp": Arrangement(whole_weights=True),
    },
}
"""By engine and name; the first is what it does where none is given."""


def arrangement(run: Run, layout: Layout) -> Arrangement:
    """What a run asks for.

    Raises:
        ValueError: there is none of that name for the engine, or not with these ranks.
    """
    name, names = run.arrangement, NAMED[run.engine]
    if name not in names:
        raise ValueError(
            f"--sharding {shown(name)} with --engine {run.engine}: it has {', '.join(names)}; "
            "names in ds_configs/ and DeepSpeed JSON files are for --engine deepspeed"
        )
    here = launched().here or layout.world
    if names[name].within_hosts and layout.world % here:
        raise ValueError(
            f"--sharding {name}: {layout.world} ranks, and {here} of them on this host; every host "
            "must have as many; use --sharding full"
        )
    return names[name]
