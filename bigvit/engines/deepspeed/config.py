# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
"""DeepSpeed's configuration: a file says how memory and communication are arranged, the recipe
says the rest. No torch here, so that a contradiction is found before anything heavy is loaded."""

import difflib
import json
from pathlib import Path
from typing import Any

from bigvit import ds_configs
from bigvit.engines.arrangement import NAMED
from bigvit.recipe import Layout, Recipe, Run
from bigvit.recipe.bounds import Bound, shown
from bigvit.recipe.words import read_json

STAGE = Bound(0, 3)
BUCKET = Bound(2, 10**11)  # elements; a buffer of as many is made
ELEMENTS = Bound(0, 2**63 - 1)  # compared with, never allocated
COUNT = Bound(1, 2**31 - 1)

OFFLOAD = {
    "device": str,
    "pin_memory": bool,
    "buffer_count": COUNT,
    "buffer_size": Bound(1, 10**12),
    "max_in_cpu": ELEMENTS,
}
"""Keys of `offload_optimizer` and `offload_param`, whose device is the host or none."""

ALLOWED: dict[str, Any] = {
    "zero_optimization": {
        "stage": STAGE,
        "allgather_bucket_size": BUCKET,
        "allgather_partitions": bool,
        "contiguous_gradients": bool,
        "overlap_comm": bool,
        "reduce_bucket_size": BUCKET,
        "reduce_scatter": bool,
        "round_robin_gradients": bool,
        "stage3_max_live_parameters": ELEMENTS,
        "stage3_max_reuse_distance": ELEMENTS,
        "stage3_module_granularity_threshold": ELEMENTS,
        "stage3_param_persistence_threshold": ELEMENTS,
        "stage3_model_persistence_threshold": ELEMENTS,
        "stage3_prefetch_bucket_size": Bound(0, 10**11),
        "sub_group_size": Bound(1, 2**63 - 1),
        "use_multi_rank_bucket_allreduce": bool,
        "zero_hpz_partition_size": COUNT,
        "offload_optimizer": OFFLOAD,
        "offload_param": OFFLOAD,
    },
    "disable_allgather": bool,
    "comms_logger": {
        "enabled": bool,
        "prof_all": bool,
        "prof_ops": list,
        "verbose": bool,
        "debug": bool,
    },
    "flops_profiler": {
        "enabled": bool,
        "recompute_fwd_factor": Bound(0.0, 10.0),
        "profile_step": COUNT,
        "module_depth": Bound(-1, 10_000),
        "top_modules": COUNT,
        "detailed": bool,
        "output_file": str,
    },
    "memory_breakdown": bool,
    "wall_clock_breakdown": bool,
    "steps_per_print": COUNT,
    "dump_state": bool,
}
"""Keys that arrange memory and communication, or only print, and what their values may be."""

NULLABLE = ("offload_optimizer", "offload_param", "output_file")

LOSSY = (
    "zero_quantized_weights",
    "zero_quantized_gradients",
    "zero_quantized_nontrainable_weights",
)
"""Switches of ZeRO that change a result; as false they may stand there."""


WANTED = {bool: "true or false", dict: "an object", str: "a string", list: "a list of strings"}


def read_sharding(sharding: str) -> dict[str, Any]:
    """A sharding by its name in ds_configs/, or by the path of a DeepSpeed JSON.

    Raises:
        ValueError: there is no such name or file, or it is not a JSON object.
    """
    folder = Path(str(ds_configs.__file__)).parent
    named = sorted(path.stem for path in folder.glob("*.json"))
    path = folder / f"{sharding}.json" if sharding in named else Path(sharding)
    try:
        config = read_json(path)
    except (OSError, UnicodeDecodeError):
        near = difflib.get_close_matches(sharding, named, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        for engine, theirs in NAMED.items():
            hint = f"{sharding} is one of --engine {engine}; " if sharding in theirs else hint
        raise ValueError(
            f"--sharding {shown(sharding)}: no such name or readable file; {hint}"
            f"the names are {', '.join(named)}, or give the path of a DeepSpeed JSON"
        ) from None
    except ValueError as error:
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
    where = f"--sharding {run.arrangement}: "
    filled: dict[str, Any] = {  # a file may repeat these, or say "auto"
        "train_batch_size": recipe.batch_size,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.accumulation,
        "gradient_clipping": recipe.clip_norm or 0.0,  # left out, DeepSpeed would clip at 1.0
        "bf16": {"enabled": recipe.precision == "bf16"},
        "fp16": {"enabled": recipe.precision == "fp16"},
        # left out, both would be the model's type
        "communication_data_type": recipe.gradient_precision,
        "data_types": {"grad_accum_dtype": recipe.gradient_precision},
    }
    config: dict[str, Any] = {"steps_per_print": 2**31 - 1}  # our log says it
    for key, value in read_sharding(run.arrangement).items():
        if key in ALLOWED:
            config[key] = _value(f"{where}{key}", value, ALLOWED[key])
        elif key not in filled:
            raise ValueError(
                f"{where}{shown(key)} is not allowed there; it may hold "
                f"{', '.join(sorted(ALLOWED))} and nothing that changes a result"
            )
        elif not _agrees(value, filled[key]):
            raise ValueError(
                f"{where}{key} is {_json(value)} there, but the recipe and the command line make "
                f"it {json.dumps(filled[key])}; remove it from the file, or change the recipe's "
                "value by an override"
            )
    _check_zero(f"{where}zero_optimization.", config.get("zero_optimization", {}), layout.world)
    if recipe.precision == "fp16":
        filled["fp16"]["loss_scale"] = 1.0  # a fixed one; our own is set before each update
    if stage_of(config) < 3:
        filled["gradient_clipping"] = 0.0  # ours has the host look at nothing
    if stage_of(config) == 0:
        filled["data_types"] = {}  # autograd adds them up, and is told the type
    return {
        **config,
        **filled,
        # on by default, it has the whole device synchronised twice a micro-batch
        "timers": {"throughput": {"enabled": False}},
        # divided by the ranks before they are added up, as with `reduce_scatter`
        "prescale_gradients": stage_of(config) == 1,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # ours works on offloaded tensors too
    }


def _check_zero(where: str, zero: dict[str, Any], world: int) -> None:
    """Refuse values of ZeRO that do not go together, or not with so many ranks."""
    if zero.get("allgather_bucket_size", 0) % 2:
        raise ValueError(
            f"{where}allgather_bucket_size is {zero['allgather_bucket_size']}; DeepSpeed needs an "
            "even number"
        )
    if world % min(world, inner := zero.get("zero_hpz_partition_size", 1)):
        raise ValueError(
            f"{where}zero_hpz_partition_size is {inner}; it must divide the {world} ranks"
        )
    stage = zero.get("stage", 0)
    for key, least in (("offload_optimizer", 1), ("offload_param", 3)):
        device = (zero.get(key) or {}).get("device", "none")
        if device not in ("none", "cpu"):
            raise ValueError(f'{where}{key}.device is {_json(device)}; it must be "cpu" or "none"')
        if device == "cpu" and stage < least:
            raise ValueError(
                f"{where}{key}: stage {stage} does not offload; use stage {least} or higher"
            )


def _value(where: str, value: Any, kind: Any) -> Any:
    """A value of the kind that its key has."""
    if isinstance(kind, Bound):
        whole = type(kind.low) is int
        if whole and type(value) is float and value.is_integer():
            value = int(value)  # 5e8, as many write it
        if type(value) not in ((int,) if whole else (int, float)) or not kind.allows(value):
            raise ValueError(f"{where} is {_json(value)}; it must be a number, {kind}")
        return value
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            raise ValueError(f"{where} is {_json(value)}; it must be {WANTED[dict]}")
        return {key: _item(f"{where}.{shown(key)}", key, v, kind) for key, v in value.items()}
    if type(value) is not kind or kind is list and not all(type(item) is str for item in value):
        raise ValueError(f"{where} is {_json(value)}; it must be {WANTED[kind]}")
    return value


def _item(where: str, key: str, value: Any, allowed: dict[str, Any]) -> Any:
    """The value of a key of an object."""
    if key in LOSSY and allowed is ALLOWED["zero_optimization"]:
        if value is not False:
            raise ValueError(f"{where} changes the result; remove it")
        return value
    if key not in allowed:
        raise ValueError(f"{where} is not allowed; it may hold {', '.join(sorted(allowed))}")
    return None if value is None and key in NULLABLE else _value(where, value, allowed[key])


def _json(value: Any) -> str:
    """A value in a message."""
    return shown(json.dumps(value))


def _agrees(given: Any, filled: Any) -> bool:
    if isinstance(filled, dict) and isinstance(given, dict):
        if "enabled" in filled:
            return given.get("enabled", False) in (filled["enabled"], "auto")
        return all(value in (filled.get(key), "auto") for key, value in given.items())
    return given in (filled, "auto") and not isinstance(given, bool)  # true would be 1
