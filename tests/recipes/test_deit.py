"""DeiT's recipes, and CaiT's distilled ones, against the thesis's section 3.3 and tables 3.1, 3.3,
3.9, 3.10 and 3.14, written out here (recipe-facts.md)."""

import re
from dataclasses import replace
from typing import Any

from each import each_of

from bigvit.recipe import (
    CaiT,
    CrossEntropy,
    DeiT,
    DistillationToken,
    HardDistillation,
    LinearStochasticDepth,
    Objective,
    Recipe,
    SoftDistillation,
    Teacher,
    Timm,
    batch_layout,
)
from bigvit.recipe.check import check_recipe, check_training, leaves
from bigvit.recipe.find import all_recipes
from bigvit.recipe.store import recipe_from_json, to_json

ALL = all_recipes()
RECIPES = {
    name: recipe
    for name, recipe in ALL.items()
    if name.startswith("deit_") and "_ft_" not in name  # test_transfer.py has those
}
CAITS = {
    n: r
    for n, r in ALL.items()
    if n.startswith("cait_") and re.search("_hard(_ft384|_ft448)?$|_token$", n)
}

SIZES = {  # dim, heads, parameters in millions, of the plain model and with the token
    "ti16": (192, 3, 5.72, 5.91),
    "s16": (384, 6, 22.05, 22.44),
    "b16": (768, 12, 86.57, 87.34),
}
TOKEN = DistillationToken(prediction="softmax", decayed=False)
METHODS: dict[str, tuple[tuple[Objective, ...], DistillationToken | None]] = {
    "": ((CrossEntropy(1.0, 0.1, class_weights=None),), None),
    "_soft": (
        (CrossEntropy(0.9, 0.1, class_weights=None), SoftDistillation(0.1, 3.0, "images", "class")),
        None,
    ),
    "_hard": ((CrossEntropy(0.5, 0.1, class_weights=None), HardDistillation(0.5, "class")), None),
    "_token": (
        (CrossEntropy(0.5, 0.1, class_weights=None), HardDistillation(0.5, "distillation")),
        TOKEN,
    ),
}
EVERYWHERE: dict[str, Any] = {
    "model.patch_size": 16,
    "model.depth": 12,
    "model.mlp_ratio": 4.0,
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
    "data.test_crop_ratio": 0.875,
    "clip_norm": None,
    "schedule.warmup_epochs": 5,
    "schedule.warmup_lr": 1e-6,
    "ema": None,
    "precision": "bf16",
    "gradient_precision": "fp32",
}
PRETRAINED = {
    **EVERYWHERE,
    "model.drop_path.rate": 0.1,
    "data.image_size": 224,
    "optim.lr": 5e-4 * 1024 / 512,
    "optim.weight_decay": 0.05,
    "schedule.min_lr": 1e-5,
    "batch_size": 1024,
    "starts_from": None,
}
FINETUNED = {
    **EVERYWHERE,
    "model.drop_path.rate": 0.0,
    "optim.lr": 5e-6,
    "optim.weight_decay": 1e-8,
    "schedule.min_lr": 5e-6,
    "batch_size": 512,
}


def assert_values(recipe: Recipe, wanted: dict[str, Any]) -> None:
    check_recipe(recipe)
    check_training(recipe)
    assert recipe_from_json(to_json(recipe)) == recipe
    found = dict(leaves(recipe))
    assert {path: found[path] for path in wanted} == wanted
    assert batch_layout(recipe, 8, None).micro_batch == recipe.batch_size // 8


def assert_taught_by_regnet(recipe: Recipe) -> None:
    """By RegNetY-16GF, 84 M parameters, at the student's resolution and normalisation."""
    teacher, data = recipe.teacher, recipe.data
    assert isinstance(teacher, Teacher) and isinstance(teacher.model, Timm)
    assert teacher.model == ALL["regnety_16gf_in1k_224"].model
    assert (teacher.model.architecture, teacher.model.sizes.parameters) == (
        "regnety_160",
        83_590_140,
    )
    assert (teacher.image_size, teacher.mean, teacher.std) == (data.image_size, data.mean, data.std)


@each_of(
    ("size", "method", "epochs"), [(s, m, e) for s in SIZES for m in METHODS for e in (300, 1000)]
)
def test_the_models_of_table_3_3(size: str, method: str, epochs: int):
    recipe = RECIPES[f"deit_{size}_in1k_224{'_1000e' if epochs == 1000 else ''}{method}"]
    assert_values(recipe, PRETRAINED | {"schedule.epochs": epochs, "resampling": "antialiased"})
    dim, heads, plain, with_token = SIZES[size]
    model = recipe.model
    assert isinstance(model, DeiT) and isinstance(model.drop_path, LinearStochasticDepth)
    assert (model.embed_dim, model.num_heads) == (dim, heads)
    assert (recipe.objectives, model.distillation) == METHODS[method]
    parameters = with_token if method == "_token" else plain
    assert round(model.parameters(224) / 1e6, 2) == parameters
    if method:
        assert_taught_by_regnet(recipe)
    else:
        assert recipe.teacher is None


@each_of(("method", "epochs"), [(m, e) for m in METHODS for e in (300, 1000)])
def test_deit_b_at_384_from_each(method: str, epochs: int):
    name = f"deit_b16_in1k_224{'_1000e' if epochs == 1000 else ''}{method}"
    wanted = {"data.image_size": 384, "schedule.epochs": 25, "starts_from": name}
    recipe, before = RECIPES[f"{name}_ft384"], RECIPES[name]
    assert_values(recipe, FINETUNED | wanted | {"resampling": "antialiased"})
    assert recipe.objectives == before.objectives
    assert recipe.model == replace(before.model, drop_path=LinearStochasticDepth(0.0, 8))
    if method:
        assert_taught_by_regnet(recipe)


@each_of("pixels", [160, 320])
def test_the_other_sizes_of_table_3_10(pixels: int):
    wanted = {"data.image_size": pixels, "starts_from": "deit_b16_in1k_224", "schedule.epochs": 25}
    assert_values(RECIPES[f"deit_b16_in1k_224_ft{pixels}"], FINETUNED | wanted)


def test_the_repositorys_differ_in_what_they_say():
    token = DistillationToken(prediction="logits", decayed=True)
    hard, ours = RECIPES["deit_b16_in1k_224_token_repo"], RECIPES["deit_b16_in1k_224_token"]
    assert_values(hard, PRETRAINED | {"schedule.epochs": 300})
    same = {"source": ours.source, "resampling": "antialiased"}
    assert replace(hard, **same, model=replace(ours.model, distillation=TOKEN)) == ours
    assert isinstance(hard.model, DeiT) and hard.model.distillation == token
    soft = RECIPES["deit_b16_in1k_224_token_soft_repo"]
    divided = SoftDistillation(0.5, 1.0, "images and classes", "distillation")
    assert replace(hard, objectives=(CrossEntropy(0.5, 0.1, class_weights=None), divided)) == soft
    tuned = RECIPES["deit_b16_in1k_224_ft384_repo"]
    assert_values(tuned, FINETUNED | {"schedule.epochs": 30, "resampling": "plain"})


def test_the_row_of_table_3_8_without_randaugment():
    recipe, usual = (RECIPES[f"deit_b16_in1k_224{end}"] for end in ("_no_randaugment", ""))
    check_recipe(recipe)
    assert getattr(recipe.data, "augment", "") is None
    assert replace(recipe, source=usual.source, data=usual.data) == usual


def test_the_teacher_is_trained_as_deit():
    teacher = ALL["regnety_16gf_in1k_224"]
    check_recipe(teacher)
    check_training(teacher)
    of_deit = RECIPES["deit_b16_in1k_224"]
    assert replace(teacher, model=of_deit.model, source=of_deit.source) == of_deit


def test_there_are_no_others():
    assert len(RECIPES) == 3 * 4 * 2 + 4 * 2 + 2 + 1 + 3
    assert len(CAITS) == 10 + 11 + 2


@each_of("name", CAITS)
def test_caits_distilled_models(name: str):
    recipe = CAITS[name]
    assert_values(recipe, {})
    assert_taught_by_regnet(recipe)
    by_token = name.endswith("_token")
    plain = ALL[name.replace("_token" if by_token else "_hard", "")]
    assert recipe.objectives == METHODS["_token" if by_token else "_hard"][0]
    assert isinstance(recipe.model, CaiT) and isinstance(plain.model, CaiT)
    assert recipe.model == replace(plain.model, distillation=TOKEN if by_token else None)
    if recipe.starts_from:
        assert recipe.starts_from == f"{plain.starts_from}_hard" and recipe.starts_from in CAITS
    same = {n: getattr(plain, n) for n in ("source", "model", "objectives", "teacher")}
    assert replace(recipe, **same, starts_from=plain.starts_from) == plain
