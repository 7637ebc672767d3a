"""Recipes of transfer against thesis sections 3.7.1.3, 4.3.1, 5.2.3 and 6.3.5.1 and its tables 2.3,
3.6, 3.9, 3.18, 5.4, 6.1 and 6.10, table 1 of arXiv:2106.03746, and what DeiT's authors say in
issues 45, 82 and 105 of facebookresearch/deit, written out here (recipe-facts.md)."""

from typing import Any

import pytest
from each import each_of

from bigvit.models.timm_skeleton import counted
from bigvit.recipe import AdamW, CrossEntropy, Images, Lamb, Timm, batch_layout
from bigvit.recipe.check import check_recipe, check_training, leaves
from bigvit.recipe.find import all_recipes, module_of
from bigvit.recipe.store import recipe_from_json, to_json

ALL = all_recipes()
RECIPES = {name: each for name, each in ALL.items() if module_of(name).endswith(".transfer")}

COUNTS = """
cifar10 50,000 10,000 10
cifar100 50,000 10,000 100
flowers102 2,040 6,149 102
cars196 8,144 8,041 196
inat18 437,513 24,426 8,142
inat19 265,213 3,030 1,010
food101 75,750 25,250 101
pets 3,680 3,669 37
svhn 73,257 26,032 10
clipart 33,525 14,604 345
infograph 36,023 15,582 345
painting 50,416 21,850 345
quickdraw 120,750 51,750 345
real 120,906 52,041 345
sketch 48,212 20,916 345
"""
SETS = {
    name: tuple(int(number.replace(",", "")) for number in numbers)
    for name, *numbers in map(str.split, COUNTS.strip().splitlines())
}
"""Training and test images, and classes, as published: tables 2.3, 3.6 and 1; the lists of
iNaturalist 2019 and of Pets."""
SIX = tuple(SETS)[:6]  # of tables 3.7, 3.19, 4.4, 5.5 and 6.11
EPOCHS = {name: 360 if name.startswith("inat") else 1000 for name in SIX}
EPOCHS |= {"food101": 300, "pets": 1000} | dict.fromkeys(tuple(SETS)[8:], 100)

EVERYWHERE: dict[str, Any] = {
    "data.image_size": 224,
    "data.flip": 0.5,
    "data.crop.scale": (0.08, 1.0),
    "data.mix.mixup": 0.8,
    "data.mix.cutmix": 1.0,
    "data.erasing": 0.25,
    "data.repeats": 3,
    "data.test_crop_ratio": 0.875,
    "data.held_out": 0.0,
    "schedule.warmup_epochs": 5,
    "schedule.warmup_lr": 1e-6,
    "schedule.min_lr": 1e-5,
    "teacher": None,
    "clip_norm": None,
    "trainable": "all",
    "batch_size": 1024,
    "layer_decay": 1.0,
    "ema": None,
    "seed": 0,
}
RAND = {
    "data.augment.operations": 2,
    "data.augment.magnitude": 9.0,
    "data.augment.magnitude_std": 0.5,
}
SGD_OF_DEIT = {"optim.lr": 0.01, "optim.weight_decay": 1e-4, "optim.momentum": 0.9}
ADAMW_OF_DEIT = {"optim.lr": 7.5e-5, "optim.weight_decay": 0.05, "optim.betas": (0.9, 0.999)}
FAMILIES: dict[str, tuple[float, dict[str, Any]]] = {
    # the recipe's weights: lr in training, what is its own
    "cait_s36_in1k_224": (1e-3, {**RAND, "model.drop_path.rate": 0.2, "optim.weight_decay": 0.05}),
    "cait_m36_in1k_224": (1e-3, {**RAND, "model.drop_path.rate": 0.3, "optim.weight_decay": 0.05}),
    "resmlp_s12_in1k_224": (5e-3, {**RAND, "optim.weight_decay": 0.2}),
    "resmlp_s24_in1k_224": (5e-3, {**RAND, "optim.weight_decay": 0.2}),
    "patchconvnet_s60_in1k_224": (3e-3, {**RAND, "optim.weight_decay": 0.01}),
    "patchconvnet_b120_in1k_224": (3e-3, {**RAND, "optim.weight_decay": 0.05}),
    "deit3_s16_in1k_224": (3e-3, {"model.drop_path.rate": 0.0}),
    "deit3_b16_in1k_224": (3e-3, {"model.drop_path.rate": 0.1}),
    "deit3_l16_in1k_224": (3e-3, {"model.drop_path.rate": 0.4}),
}
FAMILIES |= {f"{name}_hard": FAMILIES[name] for name in tuple(FAMILIES)[:2]}
KINDS: dict[str, dict[str, Any]] = {
    "cait": {},
    "resmlp": {"data.test_crop_ratio": 0.9, "model.drop_path.rate": 0.1},
    "patchconvnet": {"data.erasing": 0.0, "data.repeats": 1},
    "deit3": {
        "data.erasing": 0.0,
        "data.test_crop_ratio": 1.0,
        "data.augment.color_jitter": 0.3,
        "optim.weight_decay": 0.02,
        "clip_norm": 1.0,
        "objectives.0.threshold": 0.0,
    },
}
SEEN = set[str]()


def assert_values(name: str, dataset: str, starts_from: str, wanted: dict[str, Any]) -> None:
    SEEN.add(name)
    recipe = RECIPES[name]
    check_recipe(recipe)
    check_training(recipe)
    assert recipe_from_json(to_json(recipe)) == recipe
    assert batch_layout(recipe, 8, None).micro_batch * 8 == recipe.batch_size
    train, test, classes = SETS[dataset]
    assert recipe.starts_from == starts_from and starts_from in ALL
    wanted = {
        **EVERYWHERE,
        "schedule.epochs": EPOCHS[dataset],
        **wanted,
        "data.train_images": train,
        "data.test_images": test,
        "data.classes": classes,
        "model.num_classes": classes,
    }
    if "teacher.image_size" in wanted:
        del wanted["teacher"]
    found = dict(leaves(recipe))
    assert {path: found[path] for path in wanted} == wanted
    before, sizes = ALL[starts_from].model, ("embed_dim", "depth", "patch_size", "pooling")
    for size in sizes:  # of the weights that it starts from
        assert getattr(recipe.model, size, None) == getattr(before, size, None)


@each_of("dataset", SIX)
def test_deit(dataset: str):
    small = {**SGD_OF_DEIT, "data.erasing": 0.0, "model.drop_path.rate": 0.0}
    large = {**ADAMW_OF_DEIT, "data.erasing": 0.1, "model.drop_path.rate": 0.1}
    own = {**RAND, **(large if dataset.startswith("inat") else small), "batch_size": 768}
    for start, size in (("deit_b16_in1k_224", 224), ("deit_b16_in1k_224_ft384", 384)):
        wanted = {**own, "data.image_size": size}
        assert_values(f"{start}_ft_{dataset}", dataset, start, wanted)


@each_of("dataset", SIX)
def test_distilled_deit(dataset: str):
    """As without, but for the token, whose head learns from a teacher of the data's classes."""
    for start, size in (("deit_b16_in1k_224_token", 224), ("deit_b16_in1k_224_token_ft384", 384)):
        name = f"{start}_ft_{dataset}"
        teacher = RECIPES[name].teacher
        wanted: dict[str, Any] = {
            "teacher.image_size": size,
            "batch_size": 768,
            "objectives.0.weight": 0.5,
            "objectives.0.smoothing": 0.1,
            "objectives.1.weight": 0.5,
            "objectives.1.head": "distillation",
            "data.image_size": size,
        }
        if not dataset.startswith("inat"):
            wanted |= SGD_OF_DEIT
        wanted["data.erasing"] = 0.1 if dataset.startswith("inat") else 0.0
        assert_values(name, dataset, start, wanted)
        plain = RECIPES[f"{start.replace('_token', '')}_ft_{dataset}"]
        own, theirs = dict(leaves(RECIPES[name])), dict(leaves(plain))
        changed = {path for path in own.keys() | theirs.keys() if own.get(path) != theirs.get(path)}
        parts = ("source", "starts_from", "model.distillation", "objectives", "teacher")
        assert all(path.startswith(parts) for path in changed)
        assert teacher is not None
        assert isinstance(teacher.model, Timm) and teacher.model.architecture == "regnety_160"
        if dataset in ("cifar10", "flowers102"):
            assert counted(teacher.model, size) == teacher.model.sizes


@each_of("start", FAMILIES)
def test_what_is_tuned_as_section_3_7_1_3_says(start: str):
    lr, own = FAMILIES[start]
    kind = start.partition("_")[0]
    for dataset in SETS if kind == "deit3" else SIX:
        divided = 100 if dataset.startswith("cifar") else 10
        wanted = {**KINDS[kind], **own, "optim.lr": pytest.approx(lr / divided)}
        if kind == "deit3" and dataset == "flowers102":
            wanted["trainable"] = "attention"  # section 6.3.5.1
        sides = {"_ft_": 224, "_ft320_": 320} if kind == "patchconvnet" else {"_ft_": 224}
        for ft, side in sides.items():
            name = f"{start}{ft}{dataset}"
            assert_values(name, dataset, start, {**wanted, "data.image_size": side})
            recipe = RECIPES[name]
            assert isinstance(recipe.optim, AdamW if kind == "cait" else Lamb)
            assert isinstance(recipe.objectives[0], CrossEntropy) == (kind != "deit3")


def test_there_are_no_others():
    test_deit()
    test_distilled_deit()
    test_what_is_tuned_as_section_3_7_1_3_says()
    assert set(RECIPES) == SEEN and len(SEEN) == 4 * 6 + 4 * 6 + 2 * 6 + 4 * 6 + 3 * 15


def test_every_recipe_of_a_data_set_has_its_published_counts():
    names: dict[str, str] = {}
    for name in SETS:
        data = RECIPES[f"deit3_b16_in1k_224_ft_{name}"].data
        assert isinstance(data, Images)
        names[data.dataset] = name
    compared = 0
    for name, recipe in ALL.items():
        data = recipe.data
        if isinstance(data, Images) and data.level == "own" and data.dataset in names:
            train, test, classes = SETS[names[data.dataset]]
            assert (data.train_images, data.classes) == (train, classes), name
            assert data.test_images in (test, None, 0), name
            compared += 1
    assert compared > 200
