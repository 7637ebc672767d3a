"""ResMLP's recipes against the thesis's section 4.3.1 and tables 3.9, 4.1 and 4.3, and against the
authors' resmlp_models.py, written out here (recipe-facts.md)."""

from typing import Any

import pytest
from each import each_of

from bigvit.recipe import AveragePooling, ClassMlp, CrossEntropy, HardDistillation, batch_layout
from bigvit.recipe.check import check_recipe, check_training, leaves
from bigvit.recipe.find import all_recipes
from bigvit.recipe.store import recipe_from_json, to_json

RECIPES = {
    name: each
    for name, each in all_recipes().items()
    if name.startswith("resmlp_") and "_ft_" not in name  # test_transfer.py has those
}

SIZES: dict[str, tuple[Any, ...]] = {
    # dim, depth, patch, initial factor, that of the repository, parameters (M), GMAC (table 4.3)
    "s12": (384, 12, 16, 0.1, 0.1, 15.4, 3.0),
    "s24": (384, 24, 16, 1e-5, 1e-5, 30.0, 6.0),
    "s36": (384, 36, 16, 1e-6, 1e-6, 44.7, None),
    "b24": (768, 24, 16, 1e-5, None, 115.7, 23.0),
    "s12_14": (384, 12, 14, 0.1, None, 15.6, 4.0),
    "s12_8": (384, 12, 8, 0.1, None, 22.1, 14.0),
    "b24_8": (768, 24, 8, 1e-5, 1e-6, 129.1, 100.2),
}
ROWS: dict[str, tuple[dict[str, Any], float, float]] = {
    # what differs from S12, parameters (M), GMAC (table 4.3)
    "layernorm": ({"model.norm": "layer_norm"}, 15.4, 3.0),
    "class_mlp": ({"model.pooling.depth": 2}, 17.7, 3.0),
    "none": ({"model.communication": "none"}, 14.9, 2.8),
    "mlp": ({"model.communication": "mlp"}, 18.6, 4.3),
    "conv": ({"model.communication": "conv"}, 30.8, 6.0),
    "depthwise": ({"model.communication": "depthwise"}, 14.9, 2.8),
    "separable": ({"model.communication": "separable"}, 16.7, 3.2),
}
EVERYWHERE: dict[str, Any] = {
    "model.mlp_ratio": 4.0,
    "model.drop_path.rate": 0.1,
    "data.image_size": 224,
    "data.flip": 0.5,
    "data.augment.operations": 2,
    "data.augment.magnitude": 9.0,
    "data.augment.magnitude_std": 0.5,
    "data.erasing": 0.25,
    "data.mix.mixup": 0.8,
    "data.mix.cutmix": 1.0,
    "data.test_crop_ratio": 0.9,
    "optim.betas": (0.9, 0.999),
    "optim.weight_decay": 0.2,
    "schedule.warmup_epochs": 5,
    "schedule.warmup_lr": 1e-6,
    "schedule.min_lr": 1e-5,
    "clip_norm": None,
    "batch_size": 1024,
    "ema": None,
}
ON_1K = {
    **EVERYWHERE,
    "data.train_images": 1_281_167,
    "data.repeats": 3,
    "model.num_classes": 1000,
    "optim.lr": 5e-3,
    "schedule.epochs": 400,
    "starts_from": None,
}
USUAL = {"model.norm": "affine", "model.communication": "linear", "model.shift": True}


def assert_values(name: str, wanted: dict[str, Any]) -> None:
    recipe = RECIPES[name]
    check_recipe(recipe)
    check_training(recipe)
    assert recipe_from_json(to_json(recipe)) == recipe
    found = dict(leaves(recipe))
    assert {path: found[path] for path in wanted} == wanted
    assert type(recipe.optim).__name__ == "Lamb"
    if "_hard" in name:
        assert recipe.objectives == (
            CrossEntropy(0.5, 0.1, class_weights=None),
            HardDistillation(0.5, "class"),
        )
        assert found["teacher.model.architecture"] == "regnety_160"
        assert found["teacher.image_size"] == 224
    else:
        assert (
            recipe.objectives == (CrossEntropy(1.0, 0.1, class_weights=None),)
            and recipe.teacher is None
        )
    assert batch_layout(recipe, 8, None).micro_batch == recipe.batch_size // 8


def assert_sizes(name: str, parameters: float, gmacs: float | None) -> None:
    """To half a percent and half a unit of the last digit printed."""
    model = RECIPES[name].model
    pairs = [(model.parameters(224) / 1e6, parameters), (model.macs(224) / 1e9, gmacs)]
    for found, printed in pairs:
        if printed is not None:
            assert abs(found - printed) <= 0.05 + 5e-3 * printed, (name, found, printed)


def of_size(size: str) -> dict[str, Any]:
    dim, depth, patch, *_ = SIZES[size]
    return {"model.embed_dim": dim, "model.depth": depth, "model.patch_size": patch}


@each_of("size", SIZES)
def test_tables_4_1_and_4_3(size: str):
    *_, start, of_repository, parameters, gmacs = SIZES[size]
    name = f"resmlp_{size}_in1k_224"
    wanted = ON_1K | USUAL | of_size(size)
    assert_values(name, wanted | {"model.layer_scale": start})
    assert RECIPES[name].model.pooling == AveragePooling()  # pyright: ignore
    assert_sizes(name, parameters, gmacs)
    if size not in ("s12_14", "s12_8"):
        assert_values(f"{name}_hard", wanted | {"model.layer_scale": start})
    if of_repository is not None:
        wanted |= {"model.layer_scale": of_repository, "model.shift": False}
        for ending in ("_repo", "_hard_repo"):
            assert_values(f"{name}{ending}", wanted)
            assert_sizes(f"{name}{ending}", parameters, gmacs)


@each_of("row", ROWS)
def test_the_rows_of_table_4_3(row: str):
    differs, parameters, gmacs = ROWS[row]
    name = f"resmlp_s12_{row}_in1k_224"
    assert_values(name, ON_1K | USUAL | of_size("s12") | {"model.layer_scale": 0.1} | differs)
    assert_sizes(name, parameters, gmacs)
    pooling = RECIPES[name].model.pooling  # pyright: ignore
    assert pooling == (ClassMlp(2) if row == "class_mlp" else AveragePooling())


def test_imagenet_21k_and_its_fine_tuning():
    own = USUAL | of_size("b24_8") | {"model.layer_scale": 1e-5}
    on_21k = {
        "data.train_images": 14_197_122,
        "data.repeats": 1,
        "model.num_classes": 21_841,
        "optim.lr": 5e-3,
        "schedule.epochs": 60,
        "starts_from": None,
    }
    assert_values("resmlp_b24_8_in21k_224", EVERYWHERE | own | on_21k)
    tuned = {"optim.lr": 5e-4, "schedule.epochs": 100, "starts_from": "resmlp_b24_8_in21k_224"}
    assert_values("resmlp_b24_8_in21k_224_ft224", ON_1K | own | tuned)


def test_there_are_no_others():
    assert len(RECIPES) == len(SIZES) + len(ROWS) + 5 + 2 + 4 + 4


@pytest.mark.parametrize("name", ["resmlp_s12_in1k_224", "resmlp_s12_mlp_in1k_224"])
def test_patches_that_do_not_fit_are_refused(name: str):
    model = RECIPES[name].model
    with pytest.raises(ValueError, match="data.image_size: 225"):
        model.check(225, None)
    model.check((224, 160), None)
