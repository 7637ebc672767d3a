"""Recipes as JSON: nothing lost, nothing let in, and what differs between two of them."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from each import each_of

from bigvit.recipe import Digits, Shift
from bigvit.recipe.find import all_recipes
from bigvit.recipe.store import differences, filled, left_out, recipe_from_json, to_json
from bigvit.recipes.deit3 import deit3_h14_in1k_126
from bigvit.recipes.digits import digits_vit
from bigvit.recipes.photos import photos_cait_64, photos_vit_64

assert isinstance(digits_vit.data, Digits)
VARIANTS = {
    **all_recipes(),
    "augmented": replace(digits_vit, data=replace(digits_vit.data, augment=Shift(pixels=1))),
    "not clipped": replace(digits_vit, clip_norm=None),
    "two numbers of pixels": replace(
        photos_vit_64, data=replace(photos_vit_64.data, image_size=(64, 96))
    ),
    "two objectives": replace(
        digits_vit, objectives=digits_vit.objectives + deit3_h14_in1k_126.objectives
    ),
}


@each_of("name", VARIANTS)
def test_a_recipe_survives_json(name: str) -> None:
    recipe = VARIANTS[name]
    value = to_json(recipe)
    read = json.loads(json.dumps(value))
    assert read == value
    assert recipe_from_json(read) == recipe


def test_the_kind_of_every_part_is_written() -> None:
    value = to_json(digits_vit)
    assert value["kind"] == "Recipe"
    assert value["model"]["kind"] == "ViT"
    assert value["model"]["drop_path"]["kind"] == "StochasticDepth"
    assert [objective["kind"] for objective in value["objectives"]] == ["CrossEntropy"]


def test_a_whole_number_stands_for_a_float() -> None:
    value = to_json(digits_vit)
    value["clip_norm"], value["optim"]["lr"] = 1, 2
    recipe = recipe_from_json(value)
    assert (type(recipe.clip_norm), type(recipe.optim.lr)) == (float, float)
    assert recipe.optim.lr == 2.0


def test_a_field_that_came_later_is_taken_as_older_files_meant_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    value = to_json(digits_vit)
    del value["ema"]
    assert recipe_from_json(value) == digits_vit and digits_vit.ema is None
    assert caplog.messages == ["an older bigvit wrote this recipe; it meant: ema: (absent) -> None"]
    assert list(differences(filled(value), to_json(digits_vit))) == []
    assert recipe_from_json(to_json(digits_vit)) == digits_vit
    assert len(caplog.messages) == 1
    value = to_json(photos_vit_64)
    del value["data"]["test_images"]
    assert recipe_from_json(value) == photos_vit_64
    assert "it meant: data.test_images: (absent) -> None" in caplog.messages[1]
    for recipe in (photos_vit_64, photos_cait_64):
        value = to_json(recipe)
        del value["model"]["dense_head"]
        assert recipe_from_json(value) == recipe
        assert "it meant: model.dense_head: (absent) -> False" in caplog.messages[-1]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_field_that_came_later_may_have_meant_what_another_says(precision: str) -> None:
    value: dict[str, Any] = to_json(replace(digits_vit, precision=precision))
    del value["gradient_precision"]
    assert recipe_from_json(value).gradient_precision == precision
    assert left_out(value).endswith(f"it meant: gradient_precision: (absent) -> {precision}")
    del value["precision"]
    with pytest.raises(ValueError, match=r"missing fields \['precision'\]"):
        recipe_from_json(value)


def put(*path: Any) -> Callable[[Any], None]:
    """A change of the value at a path, whose last item is the new value."""
    *before, last, new = path

    def change(value: Any) -> None:
        for key in before:
            value = value[key]
        value[last] = new

    return change


def drop(*path: Any) -> Callable[[Any], None]:
    """Remove the value at a path."""
    *before, last = path

    def change(value: Any) -> None:
        for key in before:
            value = value[key]
        del value[last]

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("more", 1), r"^recipe: .*unknown fields \['more'\]"),
        (put("optim", "lrr", 1), r"^recipe\.optim: .*unknown fields \['lrr'\]"),
        (drop("seed"), r"^recipe: .*missing fields \['seed'\]"),
        (drop("optim", "lr"), r"^recipe\.optim: .*missing fields \['lr'\]"),
        (drop("model", "drop_path", "group"), r"^recipe\.model\.drop_path: .*\['group'\]"),
        (put("kind", "Recipes"), r"^recipe: .* is not a Recipe"),
        (drop("kind"), r"^recipe: .* is not a Recipe"),
        (put("model", "kind", "Swin"), r"^recipe\.model: "),
        (put("model", None), r"^recipe\.model: "),
        (put("data", "kind", "Cifar"), r"^recipe\.data: .* is none of Digits, Images"),
        (put("data", "augment", {"kind": "Mix"}), r"^recipe\.data\.augment: "),
        (put("optim", "kind", "Adagrad"), r"^recipe\.optim: .* is none of AdamW, Lamb"),
        (put("optim", "lr", "0.1"), r"^recipe\.optim\.lr: '0\.1' is not of type float"),
        (put("optim", "lr", None), r"^recipe\.optim\.lr: None is not of type float"),
        (put("optim", "lr", True), r"^recipe\.optim\.lr: True is not of type float"),
        (put("optim", "betas", [0.9]), r"^recipe\.optim\.betas: .* must have 2 values"),
        (put("optim", "betas", 0.9), r"^recipe\.optim\.betas: 0\.9 is not a list"),
        (put("optim", "betas", 1, "x"), r"^recipe\.optim\.betas\.1: 'x' is not of type float"),
        (put("data", "mean", ["x"]), r"^recipe\.data\.mean\.0: 'x' is not of type float"),
        (put("batch_size", 64.0), r"^recipe\.batch_size: 64\.0 is not of type int"),
        (put("batch_size", True), r"^recipe\.batch_size: True is not of type int"),
        (put("data", "image_size", "8"), r"^recipe\.data\.image_size: '8' is not of type int"),
        (put("precision", "fp8"), r"^recipe\.precision: 'fp8' is none of 'fp32', 'bf16'"),
        (put("clip_norm", "1"), r"^recipe\.clip_norm: '1' is not of type float"),
        (put("source", 3), r"^recipe\.source: 3 is not of type str"),
        (put("objectives", {}), r"^recipe\.objectives: {} is not a list"),
        (put("objectives", 0, "kind", "Hinge"), r"^recipe\.objectives\.0: .* is none of "),
        (put("objectives", 0, "weight", None), r"^recipe\.objectives\.0\.weight: None "),
    ],
)
def test_what_is_no_recipe_is_refused_by_its_path(change: Callable[[Any], None], said: str) -> None:
    value = to_json(digits_vit)
    change(value)
    with pytest.raises(ValueError, match=said):
        recipe_from_json(value)


@pytest.mark.parametrize("value", [None, [], "recipe", 3, {}])
def test_what_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^recipe: .* is not a Recipe"):
        recipe_from_json(value)


def test_equal_recipes_do_not_differ() -> None:
    for recipe in VARIANTS.values():
        assert list(differences(to_json(recipe), json.loads(json.dumps(to_json(recipe))))) == []


def test_differences_lists_exactly_what_differs() -> None:
    old, new = to_json(digits_vit), to_json(digits_vit)
    new["seed"] = 1
    new["optim"]["lr"] = 0.5
    new["optim"]["betas"][1] = 0.99
    new["model"]["drop_path"]["rate"] = 0.2
    new["objectives"][0]["smoothing"] = 0.0
    new["clip_norm"] = None
    assert sorted(differences(old, new)) == [
        "clip_norm: 1.0 -> None",
        "model.drop_path.rate: 0.05 -> 0.2",
        "objectives.0.smoothing: 0.1 -> 0.0",
        "optim.betas.1: 0.999 -> 0.99",
        "optim.lr: 0.004 -> 0.5",
        "seed: 0 -> 1",
    ]


def test_another_kind_with_the_same_values_differs() -> None:
    new = to_json(digits_vit)
    new["optim"]["kind"] = "Lamb"
    assert list(differences(to_json(digits_vit), new)) == ["optim.kind: AdamW -> Lamb"]


def test_lists_of_other_lengths_differ_as_a_whole() -> None:
    assert list(differences({"a": [1, 2]}, {"a": [1]})) == ["a: [1, 2] -> [1]"]


def test_a_field_that_only_one_side_has_differs() -> None:
    assert list(differences({"a": 1}, {"a": 1, "b": 2})) == ["b: (absent) -> 2"]
    assert list(differences({"a": 1, "b": 2}, {"a": 1})) == ["b: 2 -> (absent)"]
    assert len(list(differences({"a": 1, "b": None}, {"a": 1}))) == 1
