"""CaiT's recipes against tables 3.15, 3.16, 3.20 and 6.13, written out here (recipe-facts.md)."""

from dataclasses import replace
from typing import Any

import pytest
from each import each_of

from bigvit.recipe import (
    AveragePooling,
    BranchScalar,
    CaiT,
    ClassAttention,
    ClassToken,
    CrossEntropy,
    FixedLayerScale,
    Fixup,
    LayerScale,
    Pooling,
    Recipe,
    Residual,
    TFixup,
    TokenLabeling,
    UniformLayerScale,
    Unscaled,
    batch_layout,
)
from bigvit.recipe.check import check_recipe, check_training, leaves
from bigvit.recipe.find import all_recipes
from bigvit.recipe.store import recipe_from_json, to_json

RECIPES = {
    name: recipe
    for name, recipe in all_recipes().items()
    # test_deit.py has the distilled ones, test_transfer.py those of other data sets
    if name.startswith("cait_") and recipe.teacher is None and "_ft_" not in name
}

TABLES_3_15_AND_3_16 = """
    name   dim  depth  LayerScale  drop  higher
    xxs24  192  24     1e-5        0.05  384
    xxs36  192  36     1e-6        0.1   384
    xs24   288  24     1e-5        0.05  384
    xs36   288  36     1e-6        0.1   384
    s24    384  24     1e-5        0.1   384
    s36    384  36     1e-6        0.2   384
    s48    384  48     1e-6        0.3   384
    m24    768  24     1e-5        0.2   384
    m36    768  36     1e-6        0.3   384,448
    m48    768  48     1e-6        0.4   448
"""
TABLE_3_20 = """
    name              heads  talking  depth  LayerScale  drop  class  epochs  params  GMAC
    step1_deit_s      6      False    12     -           0.05  0      300     22      4.6
    step2_heads       8      False    12     -           0.05  0      300     22      4.6
    step3_talking     8      True     12     -           0.05  0      300     22      4.6
    step4_depth       8      True     36     -           0.05  0      300     64      13.8
    step5_layerscale  8      True     36     1e-6        0.05  0      300     64      13.8
    step6_droppath    8      True     36     1e-6        0.2   0      300     64      13.8
    step7_cait        8      True     36     1e-6        0.2   36     300     68      13.9
    step8_longer      8      True     36     1e-6        0.2   36     400     68      13.9
"""
EVERYWHERE: dict[str, Any] = {
    "data.train_images": 1_281_167,
    "data.test_images": None,
    "data.crop.scale": (0.08, 1.0),
    "data.crop.interpolation": "bicubic",
    "data.flip": 0.5,
    "data.augment.operations": 2,
    "data.augment.magnitude": 9.0,
    "data.augment.magnitude_std": 0.5,
    "data.erasing": 0.25,
    "data.repeats": 3,
    "data.mix.mixup": 0.8,
    "data.mix.cutmix": 1.0,
    "objectives.0.smoothing": 0.1,
    "optim.weight_decay": 0.05,
    "clip_norm": None,
    "schedule.warmup_epochs": 5,
    "ema": None,
    "resampling": "antialiased",
    "precision": "bf16",
    "gradient_precision": "fp32",
}
PRETRAINED = {**EVERYWHERE, "optim.lr": 1e-3, "schedule.min_lr": 1e-5, "batch_size": 1024}
FINETUNED = {
    **EVERYWHERE,
    "optim.lr": 5e-6,
    "schedule.min_lr": 5e-6,
    "schedule.epochs": 60,
    "batch_size": 256,
}
SECOND_STAGE = ClassAttention(depth=2, keys="class and patches")

RESIDUALS: tuple[Residual, ...] = (
    LayerScale(0.0),
    UniformLayerScale(1e-5),
    FixedLayerScale(),
    BranchScalar(0.0),
    Fixup(),
    TFixup(),
    Unscaled(),
)
POOLINGS: tuple[Pooling, ...] = (
    ClassAttention(1, "patches"),
    ClassToken(10),
    AveragePooling(),
)


def rows(table: str) -> list[dict[str, str]]:
    header, *lines = (line.split() for line in table.strip().splitlines())
    return [dict(zip(header, line, strict=True)) for line in lines]


def assert_values(recipe: Recipe, wanted: dict[str, Any]) -> None:
    check_recipe(recipe)
    found = dict(leaves(recipe))
    assert {path: found[path] for path in wanted} == wanted
    layout = batch_layout(recipe, 8, None)
    assert layout.micro_batch == recipe.batch_size // 8


def model_of(recipe: Recipe) -> CaiT:
    assert isinstance(recipe.model, CaiT)
    return recipe.model


@each_of("row", rows(TABLES_3_15_AND_3_16))
def test_the_ten_models(row: dict[str, str]):
    name = f"cait_{row['name']}_in1k_224"
    recipe = RECIPES[name]
    wanted = {"data.image_size": 224, "data.test_crop_ratio": 1.0, "schedule.epochs": 400}
    assert_values(recipe, PRETRAINED | wanted)
    model = model_of(recipe)
    assert (model.embed_dim, model.depth, model.num_heads) == (
        int(row["dim"]),
        int(row["depth"]),
        int(row["dim"]) // 48,
    )
    assert model.residual == LayerScale(float(row["LayerScale"]))
    assert (model.talking_heads, model.pooling) == (True, SECOND_STAGE)
    assert model.drop_path.rate == float(row["drop"])
    for pixels in map(int, row["higher"].split(",")):
        tuned = RECIPES[f"{name}_ft{pixels}"]
        assert_values(tuned, FINETUNED | {"data.image_size": pixels, "starts_from": name})
        rate = round(max(0.0, model.drop_path.rate - 0.1), 2)
        assert tuned.model == replace(model, drop_path=replace(model.drop_path, rate=rate))


@each_of("row", rows(TABLE_3_20))
def test_the_path_from_deit_s(row: dict[str, str]):
    recipe = RECIPES[f"cait_{row['name']}_in1k_224"]
    epochs = int(row["epochs"])
    assert_values(recipe, PRETRAINED | {"data.test_crop_ratio": 0.875, "schedule.epochs": epochs})
    model = model_of(recipe)
    assert (model.num_heads, model.depth) == (int(row["heads"]), int(row["depth"]))
    assert model.talking_heads == (row["talking"] == "True")
    factors = row["LayerScale"]
    assert model.residual == (Unscaled() if factors == "-" else LayerScale(float(factors)))
    assert model.drop_path.rate == float(row["drop"])
    assert model.pooling == (ClassToken(0) if row["class"] == "0" else SECOND_STAGE)
    assert abs(model.parameters(224) / 1e6 - float(row["params"])) < 1
    assert abs(model.macs(224) / 1e9 - float(row["GMAC"])) < 0.1


def test_each_step_of_the_path_changes_what_it_says():
    steps = [RECIPES[f"cait_{row['name']}_in1k_224"] for row in rows(TABLE_3_20)]
    for before, after in zip(steps, steps[1:], strict=False):
        changed = [
            name
            for name in vars(before.model)
            if getattr(before.model, name) != getattr(after.model, name)
        ]
        assert len(changed) + (before.schedule != after.schedule) == 1


def test_cait_b12_by_deit3s_procedure():
    recipe = RECIPES["cait_b12_deit3_in1k_224"]
    deit3 = dict(leaves(all_recipes()["deit3_b16_in1k_224"]))
    found = dict(leaves(recipe))
    differing = {p for p in deit3.keys() & found.keys() if deit3[p] != found[p]}
    assert differing == {"source", "model.num_heads"}
    assert {type(o).__name__ for o in recipe.objectives} == {"BinaryCrossEntropy"}
    assert recipe.model.parameters(224) / 1e6 == pytest.approx(100.0, rel=1e-2)  # table 6.13
    assert recipe.model.macs(224) / 1e9 == pytest.approx(18.2, abs=0.05)


def test_there_are_no_others():
    assert len(RECIPES) == 10 + 9 + 2 + 9 + 1 + 1


def test_token_labelling_changes_heads_losses_and_mixing_alone():
    """It is ours, and says so."""
    recipe, base = RECIPES["cait_s24_in1k_224_tokens"], RECIPES["cait_s24_in1k_224"]
    check_training(recipe)
    assert recipe_from_json(to_json(recipe)) == recipe
    assert recipe.source.startswith("bigvit: CaiT") and "no paper" in recipe.source
    mixed = {"data.mix.mixup", "data.mix.cutmix"}
    kept = {path: value for path, value in dict(leaves(base)).items() if ".mix." not in path}
    ours = {"source": recipe.source, "model.dense_head": True, "data.mix.group": 8}
    assert_values(recipe, kept | ours | {"data.mix.alpha": 1.0, "data.mix.cell": 16})
    assert not mixed & dict(leaves(recipe)).keys() and recipe.maps
    assert recipe.objectives == (
        CrossEntropy(1.0, 0.1, class_weights=None),
        TokenLabeling(1.0, 0.1, "map"),
    )
    assert recipe.model.parameters(224) - base.model.parameters(224) == 1000 * 385


@each_of("residual", RESIDUALS)
@each_of("pooling", POOLINGS)
def test_ablations_are_checked_and_stored(residual: Residual, pooling: Pooling):
    base = RECIPES["cait_s24_in1k_224"]
    model = replace(model_of(base), residual=residual, pooling=pooling)
    starts = "cait_s24_in1k_224" if isinstance(residual, FixedLayerScale) else None
    recipe = replace(base, model=model, starts_from=starts)
    check_recipe(recipe)
    assert recipe_from_json(to_json(recipe)) == recipe


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pooling": ClassAttention(0, "patches")}, "model.pooling.depth: 0 .* 1 to 10,000"),
        ({"pooling": ClassToken(24)}, "model.pooling.layer: 24 .* 0 to 23"),
        ({"residual": UniformLayerScale(0.0)}, "model.residual.mean: 0.0 .* above 0"),
        ({"residual": FixedLayerScale()}, "starts_from: None .* fixed factors"),
        ({"num_heads": 7}, "model.embed_dim: 384 .* a multiple of model.num_heads"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], said: str):
    recipe = RECIPES["cait_s24_in1k_224"]
    with pytest.raises(ValueError, match=said):
        check_recipe(replace(recipe, model=replace(model_of(recipe), **change)))
