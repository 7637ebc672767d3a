# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
"""What is done to DeepSpeed before it does anything: what it says, builds and imports."""

import logging
import warnings
from importlib import import_module
from typing import Any

import deepspeed
from deepspeed.accelerator import get_accelerator

KNOWN = ("You are using ZeRO with an untested optimizer", "OVERFLOW! Skipping step")


def prepare() -> None:
    """What comes before anything else of DeepSpeed: it says warnings alone, but for those of what
    this project does on purpose, and builds nothing."""
    log = logging.getLogger("DeepSpeed")
    log.setLevel(logging.WARNING)
    log.addFilter(_is_news)
    # DeepSpeed's own calls, which torch 2.14 warns of by the hundred
    old = r"`torch\.distributed\.\w+` is deprecated"
    warnings.filterwarnings("ignore", message=old, category=FutureWarning)
    _build_no_ops()
    import_module("deepspeed.runtime.zero.muon.muon_optimizer")  # it does so later, and it is slow


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line of DeepSpeed's log says what is not known: its optimizers are tested here, and
    an update that is left out is said by the run."""
    text = record.getMessage()
    return not any(known in text for known in KNOWN)


def _build_no_ops() -> None:
    """Keep DeepSpeed from compiling and using its shared-memory collectives on a CPU: they take a
    minute to build, and leave 69 MB a rank in /dev/shm after every run."""
    accelerator: Any = get_accelerator()
    if accelerator.device_name() != "cpu":
        return  # has no such op, and looking for ops asks compilers and devices
    ops = deepspeed.ops.__compatible_ops__
    assert "deepspeed_shm_comm" in ops, "another DeepSpeed: deepspeed_shm_comm is not among its ops"
    ops["deepspeed_shm_comm"] = False


def pretend() -> None:
    """For a rehearsal, whose other ranks are not there: what rank 0 says is not waited for, and
    parameters without memory are not watched, which could not be moved then."""
    from deepspeed.runtime import engine
    from deepspeed.runtime.zero import partitioned_param_coordinator as coordinator

    for module, name in (
        (engine, "debug_extract_module_and_param_names"),
        (coordinator, "assert_ints_same_as_other_ranks"),
    ):
        assert hasattr(module, name), f"another DeepSpeed: {module.__name__} has no {name}"
        setattr(module, name, _not_asked)


def _not_asked(_: object) -> None:
    pass
