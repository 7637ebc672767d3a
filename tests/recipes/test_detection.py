"""Mask R-CNN's recipes against what the thesis and Swin's repository say."""

from typing import Any

import pytest

from bigvit.plan.weights import heads, weights_of
from bigvit.recipe import SGD, MaskRCNN, Steps
from bigvit.recipe.check import check_recipe, check_training
from bigvit.recipe.find import all_recipes
from bigvit.recipes import detection

# table 5.6, millions of parameters: without the pooling by attention, which a classifier needs
TABLE = {
    "swin_t": (47.8, 0.05),
    "resnet50": (44.2, 0.05),  # without the frozen stem and first stage
    "resnet101": (63.2, 0.05),
    "patchconvnet_s60": (44.9, 0.6),
    "patchconvnet_s120": (67.4, 0.6),
}


@pytest.mark.parametrize("name", TABLE)
def test_parameters_are_the_tables(name):
    recipe = getattr(detection, f"mask_rcnn_{name}")
    check_recipe(recipe)
    check_training(recipe)
    own = sum(w.size for w in weights_of(recipe).trained)
    assert own / 1e6 == pytest.approx(TABLE[name][0], abs=TABLE[name][1])


def test_what_is_computed_of_swin_is_about_the_tables():
    """267 G at 800 x 1280 (arXiv:2103.14030, table 2a), the norms, boxes' features and means not
    counted; with 1000 boxes, as it is tested, and 100 masks."""
    recipe = detection.mask_rcnn_swin_t
    (head,) = recipe.objectives
    assert isinstance(head, MaskRCNN)
    size, own = (800, 1280), list(head.ops(recipe.model.maps((800, 1280)), 80))
    found = recipe.model.macs(size)
    for op in own:
        boxes = ("box_" in op.module) * 1000 / head.samples or 1
        masks = ("mask_" in op.module) * 100 / (head.samples // 4) or 1
        found += op.macs * op.times * boxes * masks
    assert found / 1e9 == pytest.approx(267, rel=0.03)


@pytest.mark.parametrize("name", ["patchconvnet_s60", "patchconvnet_s120", "swin_t"])
def test_the_procedure_is_swins(name):
    """SwinTransformer/Swin-Transformer-Object-Detection, configs/swin/..._adamw_3x_coco.py."""
    recipe = getattr(detection, f"mask_rcnn_{name}")
    assert (recipe.optim.lr, recipe.optim.weight_decay, recipe.batch_size) == (1e-4, 0.05, 16)
    assert isinstance(recipe.schedule, Steps) and recipe.epochs == 36
    epoch = recipe.updates_per_epoch
    assert epoch == 7329
    rates = [recipe.lr(at) for at in (0, 500, 27 * epoch - 1, 27 * epoch, 33 * epoch)]
    assert rates == pytest.approx([1e-7, 1e-4, 1e-4, 1e-5, 1e-6])
    assert recipe.data.shortest == tuple(range(480, 801, 32)) and recipe.data.longest == 1333
    (head,) = recipe.objectives
    assert isinstance(head, MaskRCNN)
    assert (head.anchor_samples, head.samples, head.candidates[0], head.proposals[0]) == (
        *(256, 512),
        *(2000, 1000),
    )
    assert (head.proposal_overlap, head.overlap, head.least_score) == (0.7, 0.5, 0.05)
    assert not any(op.macs < 0 for op in heads(head, recipe))


@pytest.mark.parametrize("layers", [50, 101])
def test_resnets_procedure_is_mmdetections(layers):
    """open-mmlab/mmdetection, configs/common/mstrain-poly_3x_coco_instance.py (three repeats of 12
    epochs, steps after 9 and 11), and configs/_base_/models/mask_rcnn_r50_fpn.py."""
    recipe = getattr(detection, f"mask_rcnn_resnet{layers}")
    assert sum(recipe.model.depths) * 3 + 2 == layers and recipe.model.frozen_statistics
    assert recipe.starts_from == f"resnet{layers}.tv_in1k, timm"
    assert recipe.trainable == "later_stages" and recipe.batch_size == 16
    assert recipe.optim == SGD(lr=0.02, momentum=0.9, nesterov=False, weight_decay=1e-4)
    assert recipe.clip_norm is None and recipe.precision == "fp32" and recipe.epochs == 36
    epoch = recipe.updates_per_epoch
    rates = [recipe.lr(at) for at in (0, 500, 27 * epoch - 1, 27 * epoch, 33 * epoch)]
    assert rates == pytest.approx([2e-5, 0.02, 0.02, 2e-3, 2e-4])
    data = recipe.data
    assert (min(data.shortest), max(data.shortest), len(data.shortest)) == (640, 800, 161)
    assert (data.longest, data.test_shortest, data.flip) == (1333, 800, 0.5)
    (head,) = recipe.objectives
    assert not head.normalised and head.beta == 0 and head.aligned


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("swin_t_1x", "swin_t_in1k_300e"),
        ("drloc_swin_t_1x", "drloc_swin_t_in1k_300e"),
        ("swin_t_in100_1x", "swin_t_in100_300e"),
        ("drloc_swin_t_in100_1x", "drloc_swin_t_in100_300e"),
    ],
)
def test_the_1x_schedule_is_drlocs(name, before):
    """arXiv:2106.03746, supplement, section 4.1; Swin's repository, ..._adamw_1x_coco.py."""
    recipe, long = getattr(detection, f"mask_rcnn_{name}"), detection.mask_rcnn_swin_t
    check_recipe(recipe)
    check_training(recipe)
    assert (recipe.optim.lr, recipe.optim.weight_decay, recipe.batch_size) == (1e-4, 0.05, 16)
    epoch = recipe.updates_per_epoch
    assert recipe.updates == 12 * epoch
    rates = [recipe.lr(at) for at in (500, 8 * epoch - 1, 8 * epoch, 11 * epoch)]
    assert rates == pytest.approx([1e-4, 1e-4, 1e-5, 1e-6])
    assert recipe.model.drop_path.rate == 0.1
    assert (recipe.data, recipe.objectives) == (long.data, long.objectives)
    assert recipe.starts_from == before
    pretrained: Any = all_recipes()[before].model
    assert pretrained.depths == recipe.model.depths and pretrained.window_size == 7


def test_weights_to_start_from_are_there():
    known = all_recipes()
    for size in ("s60", "s120"):
        recipe = getattr(detection, f"mask_rcnn_patchconvnet_{size}")
        before: Any = known[recipe.starts_from].model
        assert (before.embed_dim, before.depth) == (recipe.model.embed_dim, recipe.model.depth)
