"""What an engine cannot do: no torch here. A new engine adds a case, and `build.py` one that builds
it."""

import re
from importlib.metadata import version

from bigvit.engines import deterministic
from bigvit.engines.arrangement import arrangement
from bigvit.engines.deepspeed.config import deepspeed_config, stage_of
from bigvit.recipe import Layout, Recipe, Run


def check(recipe: Recipe, layout: Layout, run: Run) -> None:
    """Refuse what the run's engine cannot do.

    Raises:
        ValueError: says what was given, what is allowed and what to do.
    """
    if run.deterministic and (fault := next(deterministic.unfit(), "")):
        raise ValueError(f"--deterministic: {fault}")
    match run.engine:
        case "deepspeed":
            config = deepspeed_config(recipe, layout, run)
            if run.compile and stage_of(config) == 3:
                raise ValueError(
                    f"--compile with --sharding {run.arrangement}: DeepSpeed's hooks gather "
                    "weights between the layers at stage 3, and every update would compile them "
                    "again; use stage 2 or lower, --engine fsdp2, or leave --compile out"
                )
        case "fsdp2" | "fairscale":
            arrangement(run, layout)
            _check_version(run.engine)
            if run.engine == "fairscale" and recipe.gradient_precision != recipe.precision:
                own = recipe.precision
                raise ValueError(
                    f"gradient_precision: {recipe.gradient_precision} is not allowed by --engine "
                    f"fairscale, which reduces gradients in the model's type, {own}; use "
                    f"--gradient-precision {own}, or another engine"
                )
        case "single":
            if layout.world > 1:
                raise ValueError(
                    f"--engine single is one process, not {layout.world}; leave it out, or use one "
                    "rank"
                )
            if run.sharding is not None:  # a wrong one is one, though nothing is sharded
                deepspeed_config(recipe, layout, run)


VERSIONS = {"fsdp2": ("torch", (2, 11), (3,)), "fairscale": ("fairscale", (0, 4, 13), (0, 5))}
"""What an engine was written for: a package, from one version on, below another."""


def _check_version(engine: str) -> None:
    name, least, below = VERSIONS[engine]
    given = version(name)
    if not least <= tuple(map(int, re.findall(r"\d+", given)[:3])) < below:
        first, last = (".".join(map(str, numbers)) for numbers in (least, below))
        raise ValueError(
            f"--engine {engine}: {name} {given} is installed; it needs one from {first} on, below "
            f"{last}: pip install '{name}>={first},<{last}', or use another engine"
        )


def check_device(recipe: Recipe, run: Run, device: str) -> None:
    """Refuse what the engine cannot do on this kind of device: "cpu", "cuda", ...

    Raises:
        ValueError: says what was given, what is allowed and what to do.
    """
    if run.engine == "deepspeed" and recipe.precision == "fp16" and device == "cpu":
        raise ValueError("--precision fp16: DeepSpeed has it on a GPU only; use bf16 or fp32 here")
