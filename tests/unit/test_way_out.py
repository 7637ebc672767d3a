"""What a run is told to change when a device is out of memory."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from bigvit.recipe import Command, Run, StochasticDepth, batch_layout
from bigvit.recipes.digits import digits_vit
from bigvit.training.way_out import explained

DROP = StochasticDepth(rate=0.5, group=8)
RECIPE = replace(digits_vit, batch_size=96, model=replace(digits_vit.model, drop_path=DROP))


def told(place: str, world: int = 2, error: Exception | None = None, **options: Any) -> str:
    run = Run(**options)
    layout = batch_layout(RECIPE, world, run.micro_batch)
    error = error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert isinstance(error, RuntimeError)
    said = explained(error, Command("digits_vit", RECIPE, run, ()), layout, place)
    start = f"{place}: out of memory (CUDA out of memory. Tried to allocate 2.00 GiB); use "
    return said.removeprefix(start)


THEN = "; if that is not enough, "


@pytest.mark.parametrize(
    ("options", "ways"),
    [
        # a half, or what is nearest below it, of whole groups
        ({}, f"--micro-batch 24 (48 now){THEN}--checkpoint-activations 1 (0 now), then --shard"),
        ({"micro_batch": 24}, f"--micro-batch 8 (24 now){THEN}--checkpoint-activations 1 (0 now)"),
        ({"micro_batch": 8, "checkpoint_activations": 0.5}, "--checkpoint-activations 1 (0.5 now)"),
        ({"micro_batch": 8, "checkpoint_activations": 1.0}, "--sharding zero2 (zero1 now)"),
    ],
)
def test_in_an_update_activations_come_first(options: dict[str, Any], ways: str) -> None:
    assert told("update 3", **options).startswith(ways)


def test_an_evaluation_recomputes_nothing() -> None:
    ways = told("the evaluation after update 3")
    assert ways == f"--micro-batch 24 (48 now){THEN}--sharding zero2 (zero1 now)"


@pytest.mark.parametrize(
    ("world", "options", "way"),
    [
        (2, {"sharding": "zero0"}, "--sharding zero1 (zero0 now)"),
        (2, {"sharding": "zero2"}, "--sharding zero3 (zero2 now)"),
        (2, {"sharding": "zero2", "compile": True}, "--sharding zero2_offload (zero2 now)"),
        (2, {"sharding": "zero3"}, "--sharding zero3_offload (zero3 now)"),
        (2, {"sharding": "zero3_offload"}, "more GPUs"),
        (1, {}, "--sharding zero2_offload (zero1 now)"),  # one rank has nobody to share with
        (1, {"engine": "single"}, "--engine deepspeed"),
        (2, {"engine": "fsdp2"}, "--sharding full_offload (full now)"),
        (2, {"engine": "fsdp2", "sharding": "node_offload"}, "more GPUs"),
        (2, {"engine": "fairscale"}, "--sharding sdp (oss now)"),
        (2, {"engine": "fairscale", "sharding": "sdp"}, "--engine fsdp2"),
    ],
)
def test_at_the_start_there_is_state_alone(world: int, options: dict[str, Any], way: str) -> None:
    assert told("building the engine", world, **options) == way


def test_what_is_no_want_of_memory_is_left_alone() -> None:
    assert told("update 3", error=RuntimeError("shapes cannot be multiplied")) == ""
    for words in ("NCCL error: Cuda failure 2 'out of memory'", "CUBLAS_STATUS_ALLOC_FAILED"):
        assert told("update 3", error=RuntimeError(words)).endswith("--sharding zero2 (zero1 now)")
