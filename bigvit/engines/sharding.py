# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
"""DeepSpeed's configuration: a file says how memory and communication are arranged, the recipe
says the rest. No torch here, so that a contradiction is found before anything heavy is loaded."""

import difflib
import json
from pathlib import Path
from typing import Any

from bigvit import ds_configs
from bigvit.recipe import Layout, Recipe, Run

ALLOWED = {
    "zero_optimization": dict,
    "disable_allgather": bool,
    "comms_logger": dict,
    "flops_profiler": dict,
    "memory_breakdown": bool,
    "wall_clock_breakdown": bool,
    "steps_per_print": int,
    "dump_state": bool,
}
"""Keys that arrange memory and communication, or only print, and the type of their values."""

FILLED = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "bf16",
    "fp16",
)
"""Keys that the recipe and the command line decide; a file may repeat them or say "auto"."""

ZERO_ALLOWED = {
    "stage": int,
    "allgather_bucket_size": int,
    "allgather_partitions": bool,
    "contiguous_gradients": bool,
    "overlap_comm": bool,
    "reduce_bucket_size": int,
    "reduce_scatter": bool,
    "round_robin_gradients": bool,
    "stage3_max_live_parameters": int,
    "stage3_max_reuse_distance": int,
    "stage3_module_granularity_threshold": int,
    "stage3_param_persistence_threshold": int,
    "stage3_model_persistence_threshold": int,
    "stage3_prefetch_bucket_size": int,
    "sub_group_size": int,
    "use_multi_rank_bucket_allreduce": bool,
    "zero_hpz_partition_size": int,
    "offload_optimizer": dict,
    "offload_param": dict,
}
"""Keys of `zero_optimization` that arrange memory and communication, and their values' types."""

OFFLOAD_ALLOWED = {
    "device": str,
    "pin_memory": bool,
    "buffer_count": int,
    "buffer_size": int,
    "max_in_cpu": int,
}
"""Keys of `offload_optimizer` and `offload_param`, whose device is the host or none."""

OFFLOAD = ("offload_optimizer", "offload_param")
LOSSY = (
    "zero_quantized_weights",
    "zero_quantized_gradients",
    "zero_quantized_nontrainable_weights",
)
"""Switches of ZeRO that change a result; as false they may stand there."""


WANTED = {bool: "true or false", int: "a number, 0 or more", dict: "an object", str: "a string"}


def read_sharding(sharding: str) -> dict[str, Any]:
    """A sharding by its name in ds_configs/, or by the path of a DeepSpeed JSON.

    Raises:
        ValueError: there is no such name or file, or it is not a JSON object.
    """
    folder = Path(str(ds_configs.__file__)).parent
    named = sorted(path.stem for path in folder.glob("*.json"))
    path = folder / f"{sharding}.json" if sharding in named else Path(sharding)
    try:
        config = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError):
        near = difflib.get_close_matches(sharding, named, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(
            f"--sharding {sharding}: no such name or readable file; {hint}"
            f"the names are {', '.join(named)}, or give the path of a DeepSpeed JSON"
        ) from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"--sharding {sharding}: {path} is not JSON ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"--sharding {sharding}: {path} must hold a JSON object")
    return config


def stage_of(config: dict[str, Any]) -> int:
    """The ZeRO stage that a configuration asks for."""
    return config.get("zero_optimization", {}).get("stage", 0)


def offloads(config: dict[str, Any]) -> bool:
    """Whether moments and master weights lie on the host."""
    where = config.get("zero_optimization", {}).get("offload_optimizer") or {}
    return where.get("device", "none") != "none"


def deepspeed_config(recipe: Recipe, layout: Layout, run: Run) -> dict[str, Any]:
    """The run's sharding with the recipe's values filled in.

    Raises:
        ValueError: the file contradicts the recipe, or holds a key that changes a result.
    """
    given = read_sharding(run.sharding)
    filled: dict[str, Any] = {
        "train_batch_size": recipe.batch_size,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.accumulation,
        "gradient_clipping": recipe.clip_norm or 0.0,  # left out, DeepSpeed would clip at 1.0
        "bf16": {"enabled": recipe.precision == "bf16"},
        "fp16": {"enabled": recipe.precision == "fp16"},
    }
    _refuse_strangers(run.sharding, given)
    for key in FILLED:
        if key in given and not _agrees(given[key], filled[key]):
            raise ValueError(
                f"--sharding {run.sharding}: {key} is {json.dumps(given[key])} there, but the "
                f"recipe and the command line make it {json.dumps(filled[key])}; remove it from "
                "the file, or change the recipe's value by an override"
            )
    stage = stage_of(given)
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"--sharding {run.sharding}: stage {stage} is not one of 0, 1, 2, 3")
    if recipe.precision == "fp16":
        filled["fp16"]["loss_scale"] = 1.0  # a fixed one; our own is set before each update
    return {
        "steps_per_print": 2**31 - 1,  # our log says it
        **given,
        **filled,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # ours works on offloaded tensors too
    }


def _refuse_strangers(sharding: str, given: dict[str, Any]) -> None:
    for key, value in given.items():
        if key not in ALLOWED and key not in FILLED:
            raise ValueError(
                f"--sharding {sharding}: {key} is not allowed there; it may hold "
                f"{', '.join(sorted(ALLOWED))} and nothing that changes a result"
            )
        if key in ALLOWED:
            _require_type(f"--sharding {sharding}: {key}", value, ALLOWED[key])
    for key, value in given.get("zero_optimization", {}).items():
        where = f"--sharding {sharding}: zero_optimization.{key}"
        if key in LOSSY and value:
            raise ValueError(f"{where} changes the result; remove it")
        if key not in ZERO_ALLOWED and key not in LOSSY:
            raise ValueError(
                f"{where} is not allowed; it may hold {', '.join(sorted(ZERO_ALLOWED))}"
            )
        if key in OFFLOAD and value is None:
            continue
        if key in ZERO_ALLOWED:
            _require_type(where, value, ZERO_ALLOWED[key])
        if key in OFFLOAD:
            _check_offload(where, value, stage_of(given), key)


def _check_offload(where: str, value: dict[str, Any], stage: int, key: str) -> None:
    for name, option in value.items():
        if name not in OFFLOAD_ALLOWED:
            raise ValueError(
                f"{where}.{name} is not allowed; it may hold {', '.join(sorted(OFFLOAD_ALLOWED))}"
            )
        _require_type(f"{where}.{name}", option, OFFLOAD_ALLOWED[name])
    device = value.get("device", "none")
    if device not in ("none", "cpu"):
        raise ValueError(f'{where}.device is "{device}"; it must be "cpu" or "none"')
    least = 3 if key == "offload_param" else 1
    if device == "cpu" and stage < least:
        raise ValueError(f"{where}: stage {stage} does not offload; use stage {least} or higher")


def _require_type(where: str, value: Any, kind: type) -> None:
    """JSON has no other way to say what a value must be."""
    if type(value) is not kind or kind is int and value < 0:
        wanted = WANTED[kind]
        raise ValueError(f"{where} is {json.dumps(value)}; it must be {wanted}")


def _agrees(given: Any, filled: Any) -> bool:
    if isinstance(filled, dict) and isinstance(given, dict):
        return given.get("enabled", False) in (filled["enabled"], "auto")
    return given in (filled, "auto")
