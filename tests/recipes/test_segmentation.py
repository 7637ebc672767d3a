"""UperNet's recipes on ADE20K against Swin's procedure (arXiv:2103.14030, appendix A.2.3), XCiT's
configuration files and the thesis's tables 4.6, 5.3 and 6.12, written out here."""

from dataclasses import replace
from typing import Any

import pytest
import timm
from each import each_of

from bigvit.plan.weights import heads
from bigvit.recipe import (
    CrossEntropy,
    Recipe,
    Segmentation,
    UperNet,
    batch_layout,
)
from bigvit.recipe.check import check_recipe, check_training, leaves
from bigvit.recipe.find import all_recipes
from bigvit.recipe.store import recipe_from_json, to_json
from bigvit.recipes.deit3 import deit3_b16_in1k_224
from bigvit.recipes.segmentation import ade20k_deit3_b16_512, scenes_swin_64, scenes_vit_64

EVERY = all_recipes()
RECIPES = {name: each for name, each in EVERY.items() if name.startswith("ade20k_")}

EVERYWHERE: dict[str, Any] = {
    "data.train_images": 20_210,
    "data.test_images": 2_000,
    "data.classes": 150,
    "data.zero": "not told",
    "data.factor": (0.5, 2.0),
    "data.most_of_one": 0.75,
    "data.flip": 0.5,
    "data.distortion.brightness": 32.0,
    "data.distortion.contrast": (0.5, 1.5),
    "data.distortion.saturation": (0.5, 1.5),
    "data.distortion.hue": 18.0,
    "objectives.0.scales": (1, 2, 3, 6),
    "objectives.0.auxiliary": 0.4,
    "objectives.0.auxiliary_channels": 256,
    "objectives.0.dropout": 0.1,
    "objectives.0.norm": "batch",
    "optim.lr": 6e-5,
    "optim.betas": (0.9, 0.999),
    "optim.weight_decay": 0.01,
    "schedule.updates": 160_000,
    "schedule.warmup_updates": 1_500,
    "schedule.warmup_ratio": 1e-6,
    "schedule.power": 1.0,
    "schedule.min_lr": 0.0,
    "batch_size": 16,
    "clip_norm": None,
    "layer_decay": 1.0,
}
AT_224 = {"data.image_size": 224, "data.longest": 896, "data.shortest": 224}
AT_640 = {"data.image_size": 640, "data.longest": 2560, "data.shortest": 640}
AT_512 = {"data.image_size": 512, "data.longest": 2048, "data.shortest": 512}
SIZES = {"224": AT_224, "512": AT_512, "640": AT_640}
FOUR = ((3, 5, 7, 11), (7, 11, 15, 23), (11, 17, 23, 35))  # of 12, 24; of 36 likewise

NAMES: dict[str, tuple[Any, ...]] = {
    # starts from, drop-path, blocks, channels, millions of parameters (Swin-B's and -L's are whole
    # numbers in Swin's paper) and the numbers of a position
    "deit_s16_224": ("deit_s16_in1k_224", 0.1, FOUR[0], 512, None, 0),
    "deit_b16_224": ("deit_b16_in1k_224", 0.1, FOUR[0], 512, None, 0),
    "resmlp_s12_224": ("resmlp_s12_in1k_224", 0.1, FOUR[0], 512, None, 0),
    "resmlp_s24_224": ("resmlp_s24_in1k_224", 0.1, FOUR[1], 512, None, 0),
    "resmlp_s36_224": ("resmlp_s36_in1k_224", 0.1, FOUR[2], 512, None, 0),
    "resmlp_b24_224": ("resmlp_b24_in1k_224", 0.1, FOUR[1], 512, None, 0),
    "r50_512": ("grafit_baseline_r50_in1k_224", 0.0, (2, 6, 12, 15), 512, 66.5, 0),
    "deit_s16_512": ("deit_s16_in1k_224", 0.1, FOUR[0], 512, None, 0),
    "swin_t_512": ("swin_t_in1k_300e", 0.3, (1, 3, 9, 11), 512, 59.9, 0),
    "swin_b_512": ("swin_b_in1k_224", 0.3, (1, 3, 21, 23), 512, 121, 0),
    "swin_b_in21k_640": (
        *("swin_base_patch4_window7_224.ms_in22k, timm", 0.3, (1, 3, 21, 23), 512, 121, 0),
    ),
    "swin_l_in21k_640": (
        *("swin_large_patch4_window7_224.ms_in22k, timm", 0.3, (1, 3, 21, 23), 512, 234, 0),
    ),
    "swin_t_in1k_300e_512": ("swin_t_in1k_300e", 0.2, (1, 3, 9, 11), 512, 59.9, 0),
    "drloc_swin_t_in1k_300e_512": ("drloc_swin_t_in1k_300e", 0.2, (1, 3, 9, 11), 512, 59.9, 0),
    "swin_t_in100_300e_512": ("swin_t_in100_300e", 0.2, (1, 3, 9, 11), 512, 59.9, 0),
    "drloc_swin_t_in100_300e_512": ("drloc_swin_t_in100_300e", 0.2, (1, 3, 9, 11), 512, 59.9, 0),
    # table 5.3 counts 1,024 positions, which PatchConvNet does not have
    "patchconvnet_s60_512": ("patchconvnet_s60_in1k_224", 0.15, (59,) * 4, 512, 57.1, 384),
    "patchconvnet_b60_512": ("patchconvnet_b60_in1k_224", 0.3, (59,) * 4, 512, 140.6, 768),
    "patchconvnet_b120_512": ("patchconvnet_b120_in1k_224", 0.4, (119,) * 4, 512, 229.8, 768),
    "patchconvnet_s60_in21k_512": (
        *("patchconvnet_s60_in21k_224_ft224", 0.15, (59,) * 4, 512, 57.1, 384),
    ),
    "patchconvnet_b60_in21k_512": (
        *("patchconvnet_b60_in21k_224_ft224", 0.3, (59,) * 4, 512, 140.6, 768),
    ),
    "patchconvnet_b120_in21k_512": (
        *("patchconvnet_b120_in21k_224_ft224", 0.4, (119,) * 4, 512, 229.8, 768),
    ),
    "patchconvnet_l120_in21k_512": (
        *("patchconvnet_l120_in21k_224_ft224", 0.4, (119,) * 4, 512, 383.7, 1024),
    ),
    "deit3_t16_512": ("deit3_t16_in1k_224", 0.0, FOUR[0], 192, 10.9, 0),
    "deit3_s16_512": ("deit3_s16_in1k_224", 0.0, FOUR[0], 384, 41.7, 0),
    "deit3_b16_512": ("deit3_b16_in1k_224", 0.1, FOUR[0], 512, 127.7, 0),
    "deit3_l16_512": ("deit3_l16_in1k_224", 0.4, FOUR[1], 512, 353.6, 0),
    "deit3_b16_in21k_512": ("deit3_b16_in21k_224_ft224", 0.1, FOUR[0], 512, 127.7, 0),
    "deit3_b16_in21k_384_512": ("deit3_b16_in21k_224_240e_ft384", 0.1, FOUR[0], 512, 127.7, 0),
    "deit3_l16_in21k_512": ("deit3_l16_in21k_224_ft224", 0.3, FOUR[1], 512, 353.6, 0),
    "deit3_l16_in21k_320_512": (
        "deit3_l16_in21k_224_240e_ft384, with --data.image-size 320",
        *(0.3, FOUR[1], 512, 353.6, 0),
    ),
}
# tables 5.3 and 6.12, of images of 512 x 2048, or 640 x 2560; what is not in the thesis's number
GMACS = {
    "swin_t_512": (945, None),
    "swin_b_512": (1188, None),
    "swin_b_in21k_640": (1841, None),
    # the tables' 3,230 are Swin's paper's, at twice Swin-B's width; table 7 of arXiv:2201.03545 has
    # the same model again
    "swin_l_in21k_640": (2468, None),
    "patchconvnet_s60_512": (952, None),
    "patchconvnet_b60_512": (1258, None),
    "patchconvnet_b120_512": (1550, None),
    "patchconvnet_l120_in21k_512": (2086, None),
    "deit3_t16_512": (148, "attention"),
    "deit3_s16_512": (588, "attention"),
    "deit3_b16_512": (1283, "attention"),
    "deit3_l16_512": (2231, "attention"),
}


def head_of(recipe: Recipe) -> UperNet:
    (head,) = recipe.objectives
    assert isinstance(head, UperNet)
    return head


def test_there_are_these() -> None:
    assert set(RECIPES) == {f"ade20k_{name}" for name in NAMES}


@each_of("name", NAMES)
def test_its_values_are_those_of_the_papers(name: str) -> None:
    starts_from, drop_path, blocks, channels, *_ = NAMES[name]
    recipe = RECIPES[f"ade20k_{name}"]
    check_recipe(recipe)
    check_training(recipe)
    assert recipe_from_json(to_json(recipe)) == recipe
    found, size = dict(leaves(recipe)), SIZES[name[-3:]]
    own = {"starts_from": starts_from, "objectives.0.blocks": blocks}
    own |= {"objectives.0.channels": channels, "objectives.0.normalised": "swin" in name}
    wanted = {**EVERYWHERE, **size, **own}
    assert {path: found[path] for path in wanted} == wanted
    assert recipe.model.drop_path.rate == drop_path
    start, _, rest = starts_from.partition(", ")
    assert start in (timm.list_pretrained() if rest == "timm" else EVERY)
    before: Any = None if rest == "timm" else EVERY[start].model
    assert [getattr(recipe.model, "depth", None)] == [len(recipe.model.maps(512))]
    if type(before).__name__ == type(recipe.model).__name__:  # not Swin's, and timm's
        same = ("embed_dim", "depth", "layer_scale", "patch_size", "mlp_ratio", "shift", "pooling")
        for field in same:
            assert getattr(before, field, None) == getattr(recipe.model, field, None), field
    # on 8 GPUs, two images each, as Swin and XCiT are trained
    batch_layout(recipe, 8, 2)
    # 160,000 updates of 16 are 126.7 epochs
    assert (recipe.updates, recipe.epochs, recipe.updates_per_epoch) == (160_000, 127, 1_263)


@each_of("name", [name for name, of in NAMES.items() if of[4] is not None])
def test_it_is_as_large_as_the_thesis_says(name: str) -> None:
    """Millions, without the head of ImageNet's classes."""
    recipe, (*_, millions, positions) = RECIPES[f"ade20k_{name}"], NAMES[name]
    ops = [*recipe.model.ops(recipe.data.image_size), *heads(head_of(recipe), recipe)]
    count = sum(op.times * op.parameters for op in ops if not op.module.startswith(("head", "fc")))
    assert (count + 1024 * positions) / 1e6 == pytest.approx(
        millions, abs=0.5 if isinstance(millions, int) else 0.1
    )


@each_of("name", GMACS)
def test_it_multiplies_what_the_thesis_says(name: str) -> None:
    """Without the second head, which predicts nothing."""
    recipe, (billions, without) = RECIPES[f"ade20k_{name}"], GMACS[name]
    size = (640, 2560) if name.endswith("_640") else (512, 2048)
    recipe = replace(recipe, data=replace(recipe.data, image_size=size))
    ops = [*recipe.model.ops(size), *heads(head_of(recipe), recipe)]
    counted = (op for op in ops if op.kind != without and not op.module.startswith("aux"))
    found = sum(op.times * op.macs for op in counted) / 1e9
    assert found == pytest.approx(billions, rel=0.006)


WRONG: dict[str, tuple[Recipe, str]] = {
    "no objective": (
        replace(scenes_vit_64, objectives=(CrossEntropy(1.0, 0.1, None),)),
        "objectives.0: CrossEntropy is not allowed; Segmentation data are learned by UperNet, as",
    ),
    "a class besides": (
        replace(
            scenes_vit_64,
            objectives=(*scenes_vit_64.objectives, CrossEntropy(1.0, 0.1, None)),
        ),
        "objectives.1: CrossEntropy is not allowed",
    ),
    "two": (
        replace(scenes_vit_64, objectives=scenes_vit_64.objectives * 2),
        "objectives: 2 of UperNet are not allowed; Segmentation data are learned by one",
    ),
    "other data": (
        replace(deit3_b16_in1k_224, objectives=ade20k_deit3_b16_512.objectives),
        "objectives.0: UperNet is not allowed; it learns from Segmentation data, and these are "
        "Images",
    ),
    "no such block": (
        replace(
            ade20k_deit3_b16_512,
            objectives=(replace(head_of(ade20k_deit3_b16_512), blocks=(3, 5, 7, 12)),),
        ),
        "objectives.0.blocks: .3, 5, 7, 12. is not allowed; it must be two numbers or more from 0 "
        "to 11",
    ),
    "three of one stride": (
        replace(scenes_vit_64, objectives=(replace(head_of(scenes_vit_64), blocks=(0, 1, 3)),)),
        "objectives.0.blocks: .0, 1, 3. .* four numbers, as the blocks are of one stride",
    ),
    "stages backwards": (
        replace(scenes_swin_64, objectives=(replace(head_of(scenes_swin_64), blocks=(3, 1, 0)),)),
        "objectives.0.blocks: .3, 1, 0. .* each of a coarser grid",
    ),
    "one patch": (
        replace(scenes_vit_64, data=replace(scenes_vit_64.data, image_size=(8, 64), stride=8)),
        "data.image_size: 8 x 64 is not allowed; it gives 1 x 8 features",
    ),
    "groups": (
        replace(scenes_vit_64, objectives=(replace(head_of(scenes_vit_64), channels=80),)),
        "objectives.0.channels: 80 is not allowed; it must be a multiple of 32",
    ),
    "groups of one": (
        replace(scenes_vit_64, objectives=(replace(head_of(scenes_vit_64), channels=64),)),
        "objectives.0.channels: 64 .* 96 or more",
    ),
}


@each_of("name", WRONG)
def test_what_does_not_go_together_is_refused(name: str) -> None:
    recipe, said = WRONG[name]
    with pytest.raises(ValueError, match=said):
        check_recipe(recipe)


def test_the_small_ones_can_be_trained() -> None:
    for recipe in (scenes_vit_64, scenes_swin_64):
        check_recipe(recipe)
        check_training(recipe)
        assert isinstance(recipe.data, Segmentation) and recipe.evaluated
        assert recipe.metrics == ("miou",)
        assert not recipe.classifies
