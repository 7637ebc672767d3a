"""LV-ViT's recipes against its supplement's tables 1 to 3 and the authors' repository, written out
here (recipe-facts.md)."""

from typing import Any

from each import each_of

from bigvit.recipe import CrossEntropy, LVViT, ReLabel, TokenLabeling, batch_layout
from bigvit.recipe.check import check_recipe, check_training, leaves
from bigvit.recipe.find import all_recipes
from bigvit.recipe.store import recipe_from_json, to_json

RECIPES = {name: each for name, each in all_recipes().items() if name.startswith("lv_vit_")}

SIZES: dict[str, tuple[Any, ...]] = {
    # dim, depth, heads, filters, divisor, drop-path, crop ratio, parameters without the dense head
    "t": (240, 12, 4, 64, 1.0, 0.1, 0.9, 8.29),
    "s": (384, 16, 6, 64, 2.0, 0.1, 0.9, 25.77),
    "m": (512, 20, 8, 64, 2.0, 0.2, 1.0, 55.32),
    "l": (768, 24, 12, 128, 3.0, 0.3, 1.0, 149.25),
}
EVERYWHERE: dict[str, Any] = {
    "model.mlp_ratio": 3.0,
    "model.dense_head": False,
    "data.train_images": 1_281_167,
    "data.flip": 0.5,
    "data.augment.operations": 2,
    "data.augment.magnitude": 9.0,
    "data.augment.magnitude_std": 0.5,
    "data.erasing": 0.25,
    "data.repeats": 1,
    "data.mix.mixup": 0.8,
    "data.mix.cutmix": 0.0,
    "optim.betas": (0.9, 0.999),
    "schedule.warmup_epochs": 5,
    "schedule.warmup_lr": 1e-6,
    "clip_norm": None,
    "ema": 0.99992,
}
PRETRAINED = {
    **EVERYWHERE,
    "data.image_size": 224,
    "optim.lr": 1e-3,
    "optim.weight_decay": 0.05,
    "schedule.epochs": 300,
    "schedule.min_lr": 1e-5,
    "batch_size": 1024,
    "starts_from": None,
}
FINETUNED = {
    **EVERYWHERE,
    "optim.lr": 5e-6,
    "optim.weight_decay": 1e-8,
    "schedule.epochs": 30,
    "schedule.min_lr": 5e-6,
    "batch_size": 512,
}
TRUE_LABELS = (CrossEntropy(1.0, 0.1, class_weights=None),)
STEPS: dict[str, dict[str, Any]] = {
    "step1_16_blocks": {"kernels": (16,), "strides": (16,), "mlp_ratio": 4.0},
    "step2_mlp_ratio_3": {"kernels": (16,), "strides": (16,)},
    "step3_convolutions": {"kernels": (7, 3, 3, 8), "strides": (2, 1, 1, 8)},
    "patches_7_8": {"kernels": (7, 8), "strides": (2, 8)},
    "patches_7_3_8_strides_2_2_4": {"kernels": (7, 3, 8), "strides": (2, 2, 4)},
    "patches_7_3_8": {"kernels": (7, 3, 8), "strides": (2, 1, 8)},
    "patches_7_3_3_3_3_8": {"kernels": (7, 3, 3, 3, 3, 8), "strides": (2, 1, 1, 1, 1, 8)},
}


def assert_values(name: str, wanted: dict[str, Any], objectives: Any = TRUE_LABELS) -> None:
    recipe = RECIPES[name]
    check_recipe(recipe)
    check_training(recipe)
    assert recipe_from_json(to_json(recipe)) == recipe
    found = dict(leaves(recipe))
    assert {path: found[path] for path in wanted} == wanted
    assert recipe.objectives == objectives
    assert batch_layout(recipe, 8, None).micro_batch == recipe.batch_size // 8


def own_of(size: str) -> dict[str, Any]:
    dim, depth, heads, filters, divisor, drop, crop, _ = SIZES[size]
    return {
        "model.kernels": (7, 3, 3, 8),
        "model.strides": (2, 1, 1, 8),
        "model.filters": filters,
        "model.embed_dim": dim,
        "model.depth": depth,
        "model.num_heads": heads,
        "model.divisor": divisor,
        "model.drop_path.rate": drop,
        "data.test_crop_ratio": crop,
    }


@each_of("size", SIZES)
def test_the_standard_column_of_table_1_and_its_fine_tuning(size: str):
    own, parameters = own_of(size), SIZES[size][-1]
    name = f"lv_vit_{size}_in1k_224"
    assert_values(name, PRETRAINED | own)
    assert round(RECIPES[name].model.parameters(224) / 1e6, 2) == parameters
    for pixels in (288, 384, 448):
        wanted = {"data.image_size": pixels, "starts_from": name}
        assert_values(f"{name}_ft{pixels}", FINETUNED | own | wanted)


@each_of("size", SIZES)
def test_the_columns_with_label_maps_and_their_fine_tuning(size: str):
    """Batch 1,024: 1e-3 for ReLabel, 1e-3 x 1024 / 640 for token labelling; no MixUp."""
    own, name = own_of(size), f"lv_vit_{size}_in1k_224"
    no_mix = {"data.mix": None}
    mixed = {name: value for name, value in (PRETRAINED | own).items() if ".mix." not in name}
    assert_values(f"{name}_relabel", mixed | no_mix, (ReLabel(1.0, 0.1),))
    dense = {
        "model.dense_head": True,
        "data.mix.alpha": 1.0,
        "data.mix.cell": 16,
        "optim.lr": 1.6e-3,
    }
    labels = TokenLabeling(1.0, 0.1, "map")
    assert_values(
        f"{name}_tokens", mixed | dense, (CrossEntropy(1.0, 0.1, class_weights=None), labels)
    )
    large = {"optim.lr": 1e-3, "data.augment.operations": 3} if size == "l" else {}
    assert_values(f"{name}_tokens_repo", mixed | dense | large, (ReLabel(1.0, 0.1), labels))
    tuned = {name: value for name, value in (FINETUNED | own).items() if ".mix." not in name}
    tuned |= {**dense, "optim.lr": 5e-6, "ema": None}
    for pixels in (288, 384, 448):
        wanted = {"data.image_size": pixels, "starts_from": f"{name}_tokens"}
        each = (CrossEntropy(1.0, 0.1, class_weights=None), labels)
        assert_values(f"{name}_tokens_ft{pixels}", tuned | wanted, each)
    if size == "s":
        wanted = {"data.image_size": 384, "starts_from": f"{name}_tokens_repo"}
        assert_values(f"{name}_tokens_repo_ft384", tuned | wanted, (ReLabel(1.0, 0.1), labels))


@each_of("step", STEPS)
def test_the_steps_of_table_2_and_the_rows_of_table_3(step: str):
    of_model = {f"model.{field}": value for field, value in STEPS[step].items()}
    assert_values(f"lv_vit_{step}", PRETRAINED | {"model.divisor": 1.0} | of_model)
    model = RECIPES[f"lv_vit_{step}"].model
    assert isinstance(model, LVViT)
    assert (model.embed_dim, model.depth, model.num_heads, model.filters) == (384, 16, 6, 64)


def test_there_are_no_others():
    assert len(RECIPES) == 4 * (4 + 1 + 4 + 1) + 1 + len(STEPS)
