"""Grafit's recipes against the thesis's sections 2.4.3, 2.5.1 and 2.5.4 and its tables 2.3, 2.7 and
2.14, and BYOL's appendix, written out here (recipe-facts.md)."""

from typing import Any

import pytest
from each import each_of

from bigvit.plan.weights import heads, weights_of
from bigvit.recipe import CrossEntropy, Grafit, Images, Recipe
from bigvit.recipe.check import check_recipe, check_training, leaves
from bigvit.recipe.find import all_recipes
from bigvit.recipe.store import recipe_from_json, to_json

RECIPES = {name: each for name, each in all_recipes().items() if name.startswith("grafit_")}

EVERYWHERE: dict[str, Any] = {
    "model.depths": (3, 4, 6, 3),
    "model.head_hidden_dim": None,
    "optim.momentum": 0.9,
    "optim.nesterov": True,
    "optim.weight_decay": 1e-4,
    "schedule.min_lr": 0.0,
    "clip_norm": None,
    "data.augment.operations": 2,
    "data.augment.magnitude": 9.0,
    "data.erasing": 0.25,
    "data.repeats": 1,
}
TRAINED = {
    **EVERYWHERE,
    "optim.lr": 0.4,  # 0.1 / 256 x 1024
    "schedule.epochs": 600,
    "schedule.warmup_epochs": 5,
    "batch_size": 1024,
    "starts_from": None,
    "data.mix": None,
}
LOSSES: dict[str, tuple[bool, float, float, int | None, int | None]] = {
    # table 2.7: cross-entropy, kNN, instance; the projector's hidden and output widths
    "grafit": (False, 1.0, 1.0, 4096, 256),
    "grafit_fc": (False, 1.0, 1.0, None, 256),
    "grafit_snca": (False, 1.0, 0.0, 4096, 256),
    "grafit_snca_fc": (False, 1.0, 0.0, None, 256),
    "grafit_baseline": (True, 0.0, 0.0, None, None),
    "grafit_inst": (False, 0.0, 1.0, None, None),
    "grafit_ce_inst": (True, 0.0, 1.0, None, None),
}
DATA: dict[str, tuple[int, int, int, str, int]] = {
    # images, classes, side, level, views (T)
    "cifar100_coarse_32": (50_000, 20, 32, "cifar100", 8),
    "cifar100_32": (50_000, 100, 32, "own", 8),
    "in127_224": (1_281_167, 127, 224, "map", 4),
    "in1k_224": (1_281_167, 1000, 224, "own", 4),
}
LEVELS = ("kingdom", "phylum", "class", "order", "family", "genus", "species")
INAT = {  # tables 2.3 and 2.14
    "inat18": (437_513, (6, 25, 57, 272, 1_118, 4_401, 8_142)),
    "inat19": (265_213, (3, 4, 9, 34, 57, 72, 1_010)),
}
MAIN = ("grafit", "grafit_fc", "grafit_snca", "grafit_baseline")
TRANSFERRED = {  # table 2.3; epochs of table 2.10 (section 2.5.4)
    "flowers102": (2_040, 6_149, 102, 1000),
    "cars196": (8_144, 8_041, 196, 1000),
    "food101": (75_750, 25_250, 101, 300),
    "inat18": (437_513, 24_426, 8_142, 300),
    "inat19": (265_213, 3_030, 1_010, 300),  # the published lists
}
ENDS = ("", "_mlp", "_long", "_mlp_long")  # tables 2.9, 2.16; 2.10


def assert_values(recipe: Recipe, wanted: dict[str, Any]) -> None:
    check_recipe(recipe)
    check_training(recipe)
    assert recipe_from_json(to_json(recipe)) == recipe
    found = dict(leaves(recipe))
    assert {path: found[path] for path in wanted} == wanted


def assert_losses(recipe: Recipe, method: str, views: int, side: int) -> None:
    cross, knn, instance, hidden, dim = LOSSES[method]
    assert isinstance(recipe.data, Images)
    *others, last = recipe.objectives
    assert any(isinstance(each, CrossEntropy) for each in recipe.objectives) == cross
    assert recipe.data.tested == cross  # what nothing trains is not evaluated
    if not knn and not instance:
        assert recipe.data.views == () and recipe.ema is None and not others
        return
    assert isinstance(last, Grafit) and len(others) == cross
    assert (last.weight, last.knn, last.instance, last.sigma) == (1.0, knn, instance, 0.05)
    projector, predictor = last.projector, last.predictor
    assert (projector.dim if projector else None) == dim
    assert (projector.hidden_dim if projector else None) == hidden
    assert projector is None or projector.norm == ("none" if hidden is None else "batch")
    if not instance:
        assert predictor is None and recipe.data.views == () and recipe.ema is None
        return
    assert predictor is not None and (predictor.hidden_dim, predictor.norm) == (4096, "batch")
    (group,) = recipe.data.views
    data = recipe.data
    assert (group.count, group.image_size) == (views, side)
    given = data.crop, data.flip, data.augment, data.erasing
    assert (group.crop, group.flip, group.augment, group.erasing) == given
    assert (recipe.ema, recipe.ema_end) == (0.996, 1.0)


@each_of("data", DATA)
def test_values_by_classes_and_coarse_classes(data: str):
    images, classes, side, level, views = DATA[data]
    methods = LOSSES if "coarse" in data or "127" in data else MAIN
    for method in methods:
        recipe = RECIPES[f"{method}_r50_{data}"]
        wanted = {
            **TRAINED,
            "data.train_images": images,
            "data.classes": classes,
            "model.num_classes": classes,
            "data.image_size": side,
            "data.level": level,
        }
        assert_values(recipe, wanted)
        assert_losses(recipe, method, views, side)


@pytest.mark.parametrize("year", INAT)
def test_values_at_inaturalists_levels(year: str):
    images, counts = INAT[year]
    for method in MAIN:
        for level, classes in zip(LEVELS, counts, strict=True):
            recipe = RECIPES[f"{method}_r50_{year}_{level}_224"]
            named = "own" if level == "species" else level
            wanted = {"data.train_images": images, "data.classes": classes, "data.level": named}
            assert_values(recipe, {**TRAINED, **wanted, "data.image_size": 224})
            assert_losses(recipe, method, 4, 224)
    for method, hidden in (("grafit", 4096), ("grafit_fc", None)):
        (loss,) = RECIPES[f"{method}_r50_{year}_none_224"].objectives
        assert isinstance(loss, Grafit) and loss.projector is not None
        assert (loss.knn, loss.instance, loss.projector.hidden_dim) == (0.0, 1.0, hidden)


@each_of("dataset", TRANSFERRED)
def test_values_of_transfer(dataset: str):
    images, test_images, classes, epochs = TRANSFERRED[dataset]
    for method in MAIN:
        for end in ENDS if method == "grafit" else ENDS[:2]:
            recipe = RECIPES[f"{method}_r50_in1k_224_ft_{dataset}{end}"]
            assert recipe.starts_from == f"{method}_r50_in1k_224" and recipe.starts_from in RECIPES
            long = "long" in end
            wanted = {
                **{**EVERYWHERE, "model.head_hidden_dim": 2048 if "mlp" in end else None},
                "data.train_images": images,
                "data.test_images": test_images,
                "data.classes": classes,
                "data.image_size": 224,
                "model.num_classes": classes,
                "optim.lr": 0.01,
                "schedule.epochs": epochs if long else 240,
                "schedule.warmup_epochs": 0,
                "batch_size": 512,
                **({"data.mix.cutmix": 1.0, "data.mix.mixup": 0.0} if long else {"data.mix": None}),
            }
            assert_values(recipe, wanted)
            assert recipe.data.tested and recipe.classifies


def test_there_are_no_others():
    counts = 2 * len(LOSSES) + 2 * len(MAIN) + 2 * (7 * len(MAIN) + 2) + 5 * (2 * len(MAIN) + 2)
    assert len(RECIPES) == counts


@each_of("dataset", TRANSFERRED)
def test_a_head_of_two_layers_is_what_section_2_4_6_says(dataset: str):
    """2048 features, 2048 hidden numbers (ours), BatchNorm, the classes; each layer with biases."""
    classes = TRANSFERRED[dataset][2]
    one, two = (RECIPES[f"grafit_r50_in1k_224_ft_{dataset}{end}"].model for end in ("", "_mlp"))
    added = 2048 * 2048 + 2048 + 2 * 2048
    assert two.parameters(224) - one.parameters(224) == added
    assert one.parameters(224) == 23_508_032 + 2049 * classes  # timm's resnet50 and its classifier
    assert two.macs(224) - one.macs(224) == 2048 * 2048


def test_parameters_are_those_of_table_2_7():
    """Of trunk and projector: what is left at test time. Table 2.7 has 23.8M for "FC", which 256
    numbers (section 2.3.1) do not make, and 128 (SNCA's) do."""
    trunk = RECIPES["grafit_inst_r50_in127_224"]
    own = sum(w.size for w in weights_of(trunk).all if w.trained)
    predictor = sum(op.parameters for op in heads(trunk.objectives[0], trunk))
    assert (own - predictor) // 10**5 == 235
    for method, wanted in (("grafit_snca", 329), ("grafit_snca_fc", 240)):
        recipe = RECIPES[f"{method}_r50_in127_224"]
        size = sum(w.size for w in weights_of(recipe).all if w.trained)
        assert size // 10**5 == wanted
