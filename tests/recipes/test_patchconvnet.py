"""PatchConvNet's recipes against thesis section 5.2.3, tables 5.1, 5.2, 5.7 and 5.8, and the
authors' repository, written out here (recipe-facts.md)."""

from typing import Any

from each import each_of

from bigvit.recipe import AttentionPooling, AveragePooling, CrossEntropy, Lamb, batch_layout
from bigvit.recipe.check import check_recipe, check_training, leaves
from bigvit.recipe.find import all_recipes
from bigvit.recipe.store import recipe_from_json, to_json

RECIPES = {
    name: each
    for name, each in all_recipes().items()
    if name.startswith("patchconvnet_") and "ImageNet" in str(each.data)
}  # test_transfer.py has the others

SIZES: dict[str, tuple[Any, ...]] = {
    # dim, depth, LayerScale, drop-path, the same where it is fine-tuned, parameters
    "s20": (384, 20, 1e-6, 0.0, 0.0, None),
    "s36": (384, 36, 1e-6, 0.05, 0.0, None),
    "s60": (384, 60, 1e-4, 0.15, 0.05, 25.2),
    "s120": (384, 120, 1e-6, 0.2, 0.1, 47.7),
    "b36": (768, 36, 1e-6, 0.2, 0.1, None),
    "b60": (768, 60, 1e-6, 0.3, 0.2, 99.4),
    "b120": (768, 120, 1e-6, 0.4, 0.3, 188.6),
    "l60": (1024, 60, 1e-6, 0.3, 0.2, None),
    "l120": (1024, 120, 1e-6, 0.4, 0.3, None),
}
IN_21K = ("s60", "b60", "b120", "l60", "l120")
EVERYWHERE: dict[str, Any] = {
    "model.patch_size": 16,
    "model.stem": "convolutions",
    "model.norm": "layer",
    "model.pooling.heads": 1,
    "model.pooling.queries": "one",
    "model.pooling.mlp_ratio": 3.0,
    "data.crop.scale": (0.08, 1.0),
    "data.flip": 0.5,
    "data.augment.operations": 2,
    "data.augment.magnitude": 9.0,
    "data.augment.magnitude_std": 0.5,
    "data.erasing": 0.0,
    "data.mix.mixup": 0.8,
    "data.mix.cutmix": 1.0,
    "data.test_crop_ratio": 0.875,
    "optim.betas": (0.9, 0.999),
    "optim.eps": 1e-8,
    "schedule.warmup_epochs": 5,
    "schedule.warmup_lr": 1e-6,
    "schedule.min_lr": 1e-5,
    "clip_norm": None,
    "ema": None,
    "seed": 0,
}
IN_1K = {
    **EVERYWHERE,
    "data.train_images": 1_281_167,
    "data.classes": 1000,
    "data.repeats": 3,
}
PRETRAINED = {
    **IN_1K,
    "data.image_size": 224,
    "optim.lr": 3e-3,
    "schedule.epochs": 400,
    "batch_size": 2048,
    "starts_from": None,
}
HIGHER = {
    **IN_1K,
    "optim.lr": 1e-5,
    "optim.weight_decay": 0.01,
    "schedule.epochs": 10,
    "batch_size": 1024,
}
PRETRAINED_21K = {
    **EVERYWHERE,
    "data.train_images": 14_197_122,
    "data.classes": 21_841,
    "data.test_images": 0,
    "data.repeats": 1,
    "data.image_size": 224,
    "optim.weight_decay": 0.01,
    "schedule.epochs": 90,
    "starts_from": None,
}
FROM_21K = {**HIGHER, "optim.lr": 5e-4, "schedule.epochs": 100}
SEEN: set[str] = set()


def of_model(size: str, finetuned: bool = False) -> dict[str, Any]:
    dim, depth, layer_scale, drop_path, less, _ = SIZES[size]
    return {
        "model.embed_dim": dim,
        "model.depth": depth,
        "model.layer_scale": layer_scale,
        "model.pooling.layer_scale": layer_scale,
        "model.drop_path.rate": less if finetuned else drop_path,
    }


def decayed(size: str) -> dict[str, Any]:
    return {"optim.weight_decay": 0.01 if size.startswith("s") else 0.05}


def assert_values(name: str, wanted: dict[str, Any]) -> None:
    recipe = RECIPES[name]
    SEEN.add(name)
    check_recipe(recipe)
    check_training(recipe)
    assert recipe_from_json(to_json(recipe)) == recipe
    found = dict(leaves(recipe))
    assert {path: found[path] for path in wanted} == wanted
    assert recipe.objectives == (CrossEntropy(1.0, 0.1, class_weights=None),) and isinstance(
        recipe.optim, Lamb
    )
    assert batch_layout(recipe, 8, None).micro_batch == recipe.batch_size // 8


@each_of("size", [size for size in SIZES if not size.startswith("l")])
def test_imagenet_1k_at_224_and_higher(size: str):
    name, parameters = f"patchconvnet_{size}_in1k_224", SIZES[size][-1]
    assert_values(name, PRETRAINED | of_model(size) | decayed(size))
    if parameters:
        assert round(RECIPES[name].model.parameters(224) / 1e6, 1) == parameters
    for pixels in (384, 512) if size == "s60" else (384,):
        own = {"data.image_size": pixels, "starts_from": name}
        assert_values(f"{name}_ft{pixels}", HIGHER | of_model(size, True) | own)
    batch = {"model.norm": "batch"}
    changed = PRETRAINED | of_model(size) | decayed(size) | batch
    assert_values(f"patchconvnet_{size}_bn_in1k_224", changed)


@each_of("size", IN_21K)
def test_imagenet_21k_and_from_it(size: str):
    name = f"patchconvnet_{size}_in21k_224"
    by_2048 = {"batch_size": 2048, "optim.lr": 3e-3}
    assert_values(name, PRETRAINED_21K | of_model(size) | by_2048)
    by_4096 = {"batch_size": 4096, "optim.lr": 4e-3}
    assert_values(f"{name}_4096", PRETRAINED_21K | of_model(size) | by_4096)
    for pixels in (224, 288, 384):
        own = {"data.image_size": pixels, "starts_from": name}
        assert_values(f"{name}_ft{pixels}", FROM_21K | of_model(size, True) | own)
    if size == "s60":
        own = {"data.image_size": 512, "starts_from": f"{name}_ft384"}
        assert_values(f"{name}_ft512", HIGHER | of_model(size, True) | own)


def test_the_rows_of_table_5_7():
    rest = PRETRAINED | of_model("s60") | decayed("s60")
    without = {key: value for key, value in rest.items() if "pooling" not in key}
    assert_values("patchconvnet_s60_average_in1k_224", without)
    model: Any = RECIPES["patchconvnet_s60_average_in1k_224"].model
    assert model.pooling == AveragePooling()
    assert_values("patchconvnet_s60_linear_in1k_224", rest | {"model.stem": "linear"})
    assert_values("patchconvnet_s60_heads_in1k_224", rest | {"model.pooling.heads": 8})
    each = {"model.pooling.queries": "classes"}
    assert_values("patchconvnet_s60_classes_in1k_224", rest | each)
    own = {"data.image_size": 224, "starts_from": "patchconvnet_s60_in1k_224"}
    finetuned = HIGHER | of_model("s60", True) | each | own
    assert_values("patchconvnet_s60_in1k_224_classes", finetuned)
    model = RECIPES["patchconvnet_s60_in1k_224_classes"].model
    assert model.pooling == AttentionPooling(1, "classes", 3.0, 1e-4)
    assert round(model.parameters(224) / 1e6, 1) == 25.6


def test_where_sources_differ():
    own = PRETRAINED | of_model("s60") | decayed("s60") | {"data.augment.magnitude": 7.0}
    assert_values("patchconvnet_s60_in1k_224_m7", own)


def test_there_are_no_others():
    for test in (
        test_imagenet_1k_at_224_and_higher,
        test_imagenet_21k_and_from_it,
        test_the_rows_of_table_5_7,
        test_where_sources_differ,
    ):
        test()
    assert set(RECIPES) == SEEN
