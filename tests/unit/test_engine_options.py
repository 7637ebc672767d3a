"""What an engine has not is refused before torch is there, and what it has is said."""

from dataclasses import replace

import pytest

from bigvit.engines import check as engines
from bigvit.recipe import Run, batch_layout
from bigvit.recipes.digits import digits_vit

HALF = replace(digits_vit, precision="bf16", gradient_precision="fp32")


@pytest.mark.parametrize(
    ("recipe", "world", "options", "said"),
    [
        (
            digits_vit,
            2,
            {"engine": "fsdp2", "sharding": "zero2"},
            "--sharding zero2 with --engine fsdp2: it has full, grads, node, full_offload, "
            "node_offload; names in ds_configs/ and DeepSpeed JSON files are for --engine "
            "deepspeed",
        ),
        (
            digits_vit,
            2,
            {"engine": "fsdp2", "sharding": "mine/zero.json"},
            "--sharding mine/zero.json with --engine fsdp2: it has full, grads, node",
        ),
        (
            digits_vit,
            2,
            {"engine": "fairscale", "sharding": "full"},
            "--sharding full with --engine fairscale: it has oss, sdp",
        ),
        (
            digits_vit,
            2,
            {"engine": "deepspeed", "sharding": "full"},
            "--sharding full: no such name or readable file; full is one of --engine fsdp2; the "
            "names are vit_h_4x8x32gb",
        ),
        (
            HALF,
            2,
            {"engine": "fairscale"},
            "gradient_precision: fp32 is not allowed by --engine fairscale, which reduces "
            "gradients in the model's type, bf16; use --gradient-precision bf16, or another engine",
        ),
    ],
)
def test_it_is_refused(recipe, world, options, said):
    run = Run(**options)
    with pytest.raises(ValueError) as refused:
        engines.check(recipe, batch_layout(recipe, world, None), run)
    assert str(refused.value).startswith(said)


def test_hosts_with_unequally_many_ranks_hold_no_copy_each(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_SIZE", "2")
    recipe = replace(digits_vit, batch_size=96)
    run = Run(engine="fsdp2", sharding="node")
    with pytest.raises(ValueError, match="node: 3 ranks, and 2 of them on this host; every host"):
        engines.check(recipe, batch_layout(recipe, 3, None), run)


@pytest.mark.parametrize(
    ("engine", "given", "said"),
    [
        ("fairscale", "0.4.6", "fairscale 0.4.6 is installed; it needs one from 0.4.13 on, below"),
        ("fairscale", "0.5.0", "fairscale 0.5.0 is installed"),
        ("fsdp2", "2.6.0+cu124", r"torch 2.6.0\+cu124 is installed; it needs one from 2.11 on"),
    ],
)
def test_a_package_that_is_too_old_or_new_is_refused(monkeypatch, engine, given, said):
    monkeypatch.setattr("bigvit.engines.check.version", lambda _: given)
    with pytest.raises(ValueError, match=f"--engine {engine}: {said}"):
        engines.check(digits_vit, batch_layout(digits_vit, 2, None), Run(engine=engine))


@pytest.mark.parametrize("engine", ["deepspeed", "fsdp2", "fairscale"])
def test_without_a_name_it_is_the_usual_sharding(engine):
    engines.check(digits_vit, batch_layout(digits_vit, 2, None), Run(engine=engine))
    assert Run(engine=engine).arrangement == {"deepspeed": "zero1", "fsdp2": "full"}.get(
        engine, "oss"
    )
