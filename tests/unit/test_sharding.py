"""DeepSpeed's configuration: the recipe's values filled in, and contradictions refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from each import each_of

from bigvit import ds_configs
from bigvit.engines.deepspeed.config import deepspeed_config, offloads, read_sharding, stage_of
from bigvit.recipe import Lamb, Layout, Recipe, Run
from bigvit.recipes.digits import digits_vit

CONFIGS = Path(str(ds_configs.__file__)).parent
CUT = Layout(world=2, micro_batch=8, accumulation=4)
LAMB = replace(digits_vit, optim=Lamb(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.02))


def config(path: Path, value: Any, recipe: Recipe = digits_vit) -> dict[str, Any]:
    """The configuration of a run with a user's own file."""
    path.write_text(json.dumps(value))
    return deepspeed_config(recipe, CUT, Run(sharding=str(path)))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_recipes_values_are_filled_into_a_named_sharding(stage: int) -> None:
    filled = deepspeed_config(digits_vit, CUT, Run(sharding=f"zero{stage}"))
    assert filled["train_batch_size"] == 64
    assert filled["train_micro_batch_size_per_gpu"] == 8
    assert filled["gradient_accumulation_steps"] == 4
    assert filled["gradient_clipping"] == (1.0 if stage == 3 else 0.0)  # ours below
    assert filled["bf16"]["enabled"] is filled["fp16"]["enabled"] is False
    assert filled["timers"] == {"throughput": {"enabled": False}}
    assert filled["zero_optimization"] == read_sharding(f"zero{stage}")["zero_optimization"]
    assert stage_of(filled) == stage


def test_no_clipping_is_written_as_zero() -> None:
    filled = deepspeed_config(replace(digits_vit, clip_norm=None), CUT, Run())
    assert filled["gradient_clipping"] == 0.0


def test_bf16_is_switched_on_by_the_recipe() -> None:
    filled = deepspeed_config(replace(digits_vit, precision="bf16"), CUT, Run())
    assert (filled["bf16"]["enabled"], filled["fp16"]["enabled"]) == (True, False)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("gradient", ["fp32", "bf16"])
def test_the_type_of_gradients_is_the_recipes(stage: int, gradient: Any) -> None:
    half = replace(digits_vit, precision="bf16", gradient_precision=gradient)
    filled = deepspeed_config(half, CUT, Run(sharding=f"zero{stage}"))
    assert filled["communication_data_type"] == gradient
    assert filled["data_types"] == ({} if stage == 0 else {"grad_accum_dtype": gradient})


def test_a_file_keeps_what_it_says_of_memory(tmp_path: Path) -> None:
    zero = {"stage": 2, "reduce_bucket_size": 1000}
    filled = config(tmp_path / "own.json", {"zero_optimization": zero, "steps_per_print": 5})
    assert filled["zero_optimization"] == zero
    assert filled["steps_per_print"] == 5


def test_a_file_may_repeat_the_recipes_values_or_say_auto(tmp_path: Path) -> None:
    same = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 1,
        "bf16": {"enabled": False},
        "fp16": {"enabled": False},
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
    }
    auto = {
        key: dict.fromkeys(value, "auto") if isinstance(value, dict) else "auto"
        for key, value in same.items()
    }
    without = config(tmp_path / "own.json", {})
    assert config(tmp_path / "own.json", same) == without
    assert config(tmp_path / "own.json", auto) == without


@pytest.mark.parametrize(
    ("key", "given", "wanted"),
    [
        ("train_batch_size", 128, 64),
        ("train_micro_batch_size_per_gpu", 4, 8),
        ("gradient_accumulation_steps", 1, 4),
        ("gradient_clipping", 0.0, 1.0),
        ("gradient_clipping", None, 1.0),
        ("bf16", {"enabled": True}, {"enabled": False}),
        ("bf16", True, {"enabled": False}),
        ("fp16", {"enabled": True}, {"enabled": False}),
        ("communication_data_type", "bf16", "fp32"),
        ("data_types", {"grad_accum_dtype": "bf16"}, {"grad_accum_dtype": "fp32"}),
        ("data_types", {"x": 1}, {"grad_accum_dtype": "fp32"}),
        ("data_types", "fp32", {"grad_accum_dtype": "fp32"}),
    ],
)
def test_a_contradiction_is_refused_with_key_and_both_values(
    tmp_path: Path, key: str, given: object, wanted: object
) -> None:
    with pytest.raises(ValueError) as refused:
        config(tmp_path / "own.json", {key: given})
    said = str(refused.value)
    assert f"{key} is {json.dumps(given)}" in said
    assert json.dumps(wanted) in said.replace(json.dumps(given), "", 1)


def test_a_file_without_bf16_contradicts_a_bf16_recipe_only_where_it_says_so(
    tmp_path: Path,
) -> None:
    half = replace(digits_vit, precision="bf16")
    assert config(tmp_path / "own.json", {}, half)["bf16"]["enabled"]
    with pytest.raises(ValueError, match="bf16 is"):
        config(tmp_path / "own.json", {"bf16": {"enabled": False}}, half)


def test_whole_numbers_may_be_written_as_deepspeeds_documentation_does(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(
        '{"zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8, "sub_group_size": 1e12}}'
    )
    filled = deepspeed_config(digits_vit, CUT, Run(sharding=str(tmp_path / "own.json")))
    zero = filled["zero_optimization"]
    assert zero == {"stage": 3, "reduce_bucket_size": 500_000_000, "sub_group_size": 10**12}
    assert all(type(value) is int for value in zero.values())


def test_a_copy_a_node_must_divide_the_ranks(tmp_path: Path) -> None:
    zero = {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 4}}
    three = Layout(world=6, micro_batch=8, accumulation=4)
    (tmp_path / "own.json").write_text(json.dumps(zero))
    deepspeed_config(digits_vit, CUT, Run(sharding=str(tmp_path / "own.json")))  # fewer than 4
    with pytest.raises(ValueError, match="zero_hpz_partition_size is 4; it must divide the 6"):
        deepspeed_config(digits_vit, three, Run(sharding=str(tmp_path / "own.json")))


@pytest.mark.parametrize(
    "key", ["optimizer", "scheduler", "amp", "timers", "zero_allow_untested_optimizer", "x"]
)
def test_a_key_that_changes_results_is_refused_by_name(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match=f": {key} is not allowed"):
        config(tmp_path / "own.json", {key: {"type": "Adam"}})


@pytest.mark.parametrize(
    "key",
    [
        "zero_quantized_weights",
        "zero_quantized_gradients",
        "zero_quantized_nontrainable_weights",
    ],
)
def test_quantised_zero_is_refused_by_name(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match=f"zero_optimization.{key} changes the result"):
        config(tmp_path / "own.json", {"zero_optimization": {"stage": 3, key: True}})
    config(tmp_path / "own.json", {"zero_optimization": {"stage": 3, key: False}})


@pytest.mark.parametrize("key", ["offload_optimizer", "offload_param"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"device": "nvme"}, 'device is "nvme"; it must be "cpu" or "none"'),
        ({"device": "cpu", "ratio": 0.5}, "ratio is not allowed; it may hold buffer_count"),
        ({"device": "cpu", "pin_memory": 1}, "pin_memory is 1; it must be true or false"),
        ("cpu", 'is "cpu"; it must be an object'),
    ],
)
def test_what_cannot_be_offloaded_is_refused(
    tmp_path: Path, key: str, value: object, said: str
) -> None:
    with pytest.raises(ValueError, match=f"zero_optimization.{key}.*{said}"):
        config(tmp_path / "own.json", {"zero_optimization": {"stage": 3, key: value}})


@pytest.mark.parametrize(("key", "least"), [("offload_optimizer", 1), ("offload_param", 3)])
def test_a_stage_too_low_to_offload_is_refused(tmp_path: Path, key: str, least: int) -> None:
    value = {"device": "cpu"}
    with pytest.raises(ValueError, match=f"use stage {least} or higher"):
        config(tmp_path / "own.json", {"zero_optimization": {"stage": least - 1, key: value}})
    found = config(tmp_path / "own.json", {"zero_optimization": {"stage": least, key: value}})
    assert offloads(found) == (key == "offload_optimizer")


@pytest.mark.parametrize("key", ["offload_optimizer", "offload_param"])
@pytest.mark.parametrize("value", [None, {"device": "none"}, {}])
def test_offloading_switched_off_is_accepted(tmp_path: Path, key: str, value: object) -> None:
    config(tmp_path / "own.json", {"zero_optimization": {"stage": 3, key: value}})


def test_a_missing_file_or_a_folder_is_refused_with_the_names(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(ValueError, match="the names are vit_h_4x8x32gb, .*, zero0, zero1"):
            read_sharding(str(path))


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean zero2?"):
        read_sharding("zreo2")
    with pytest.raises(
        ValueError, match="the names are vit_h_4x8x32gb, .*, zero0, zero1"
    ) as refused:
        read_sharding("qqqq")
    assert "did you mean" not in str(refused.value)


@each_of("precision", ["fp32", "bf16", "fp16"])
@each_of("name", sorted(path.stem for path in CONFIGS.glob("*.json")))
def test_every_configuration_that_comes_with_bigvit_takes_lamb(name: str, precision: str) -> None:
    recipe = replace(digits_vit, optim=LAMB.optim, precision=precision)
    found = deepspeed_config(recipe, CUT, Run(sharding=name))
    assert found["fp16"]["enabled"] == (precision == "fp16")
    assert found["fp16"].get("loss_scale", 1.0) == 1.0  # 0 would be DeepSpeed's own scaling
    assert found["zero_force_ds_cpu_optimizer"] is False
