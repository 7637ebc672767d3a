"""torchvision's Mask R-CNN of ResNet-50, its weights carried over into ours: the same features,
losses, gradients and predictions, on a canvas that is no square."""

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_mask_rcnn import CLASSES, CONFIG, choosing, losses_of, randomised, some_objects
from torch import Tensor, nn
from torchvision.models.detection import maskrcnn_resnet50_fpn, roi_heads
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import roi_align

from bigvit.data.prepare import Targets
from bigvit.objectives import detection
from bigvit.recipes.detection import HEAD, mask_rcnn_resnet50
from bigvit.task import Task

CANVAS: tuple[int, int] = (128, 96)
SIZES = [(128, 96), (80, 64)]  # the second has no object
HEADS = replace(
    HEAD,
    **{
        name: getattr(CONFIG, name)
        for name in ("anchors", "candidates", "proposals", "samples", "beta", "sampling", "aligned")
    },
)
RECIPE = replace(
    mask_rcnn_resnet50,
    model=replace(mask_rcnn_resnet50.model, num_classes=CLASSES),
    data=replace(
        mask_rcnn_resnet50.data,
        classes=CLASSES,
        image_size=CANVAS,
        shortest=(64, 80),
        longest=96,
        test_shortest=80,
    ),
    objectives=(HEADS,),
    trainable="all",
)
PLACES = {
    "backbone.body.": "model.",
    "backbone.fpn.": "heads.detection.head.pyramid.fpn.",
    "rpn.head.": "heads.detection.head.rpn.",
    "roi_heads.": "heads.detection.head.",
}


def ours_of(name: str) -> str:
    """What we call a weight of torchvision's."""
    (place,) = (place for place in PLACES if name.startswith(place))
    return PLACES[place] + name.removeprefix(place)


@pytest.fixture(autouse=True)
def proposals_of_a_cell_or_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision's RoIAlign takes a narrower one for as wide as a cell, and beyond the map for 0;
    in ours other levels lie there."""
    monkeypatch.setattr(detection, "LEAST", 4.0)


@pytest.fixture(scope="module")
def theirs() -> Any:
    """torchvision's, of random weights and statistics that are no ones and zeros."""
    sides = HEADS.anchors
    made: Any = maskrcnn_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=CLASSES + 1,
        rpn_pre_nms_top_n_train=HEADS.candidates[0],
        rpn_pre_nms_top_n_test=HEADS.candidates[1],
        rpn_post_nms_top_n_train=HEADS.proposals[0],
        rpn_post_nms_top_n_test=HEADS.proposals[1],
        box_batch_size_per_image=HEADS.samples,
    )
    made.rpn.anchor_generator.sizes = tuple((side,) for side in sides)
    made.rpn.anchor_generator.cell_anchors = [
        made.rpn.anchor_generator.generate_anchors((side,), HEADS.ratios) for side in sides
    ]
    made.rpn.min_size = 4.0
    for seed, part in enumerate((made.backbone.fpn, made.rpn, made.roi_heads)):
        randomised(part, seed)
    generator = torch.Generator().manual_seed(3)
    for name, module in made.backbone.body.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_(0, 0.1, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
            scale = 0.3 if name.endswith("bn3") else 1.0
            with torch.no_grad():
                module.weight.uniform_(0.8 * scale, 1.2 * scale, generator=generator)
                module.bias.normal_(0, 0.1, generator=generator)
        elif isinstance(module, nn.Conv2d):
            with torch.no_grad():
                fan_out = module.weight[:, 0].numel()
                module.weight.normal_(0, (2 / fan_out) ** 0.5, generator=generator)
    return made.double().eval()


@pytest.fixture(scope="module")
def ours(theirs: Any) -> Task:
    task = Task(RECIPE)
    task.init_weights()
    state = {ours_of(name): value for name, value in theirs.state_dict().items()}
    missing, unexpected = task.load_state_dict(state, strict=False)
    assert {name.rpartition(".")[2] for name in unexpected} == {"num_batches_tracked"}
    assert {*missing} == {"model.fc.weight", "model.fc.bias"}
    return task.double().train()


@pytest.fixture(scope="module")
def images() -> Tensor:
    """Of noise, beyond them too: cells that see nothing have logits that are equal, and which of
    them come first is by chance."""
    generator = torch.Generator().manual_seed(4)
    return torch.randn(len(SIZES), 3, *CANVAS, generator=generator, dtype=torch.float64)


def test_it_is_the_recipes_own_but_for_what_the_libraries_differ_in(ours: Task):
    (head,) = mask_rcnn_resnet50.objectives
    assert ours.gathered() == {} and len(ours.statistics()) == 2 * 53
    assert (head.channels, head.hidden_dim, head.mask_layers) == (256, 1024, 4)  # type: ignore[union-attr]


def test_features_are_torchvisions_in_training(ours: Task, theirs: Any, images: Tensor):
    with torch.no_grad():
        blocks = ours.model(images, None, ours.wanted).blocks
        head: Any = ours.objectives["detection"]
        found = head.head.pyramid([blocks[block] for block in ours.wanted])
        wanted = list(theirs.backbone(images).values())
    assert [tuple(x.shape[2:]) for x in found] == [(32, 24), (16, 12), (8, 6), (4, 3), (2, 2)]
    for one, other in zip(found, wanted, strict=True):
        assert float(other.std()) > 0.1
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_losses_and_gradients_are_torchvisions(
    ours: Task, theirs: Any, images: Tensor, monkeypatch: pytest.MonkeyPatch
):
    """Image by image, with the same samples; and of all weights that either trains."""

    def projected(masks: Tensor, boxes: Tensor, which: Tensor, cells: int) -> Tensor:
        rois = torch.cat([which[:, None].to(boxes), boxes], 1)
        return roi_align(masks[:, None].to(boxes), rois, (cells, cells), 1.0, 2)[:, 0]

    monkeypatch.setattr(roi_heads, "project_masks_on_boxes", projected)
    objects, head = some_objects(5, SIZES), ours.objectives["detection"]
    keys = head.draws("detection", 0, 5, (0, len(SIZES)))
    classes = torch.zeros(len(SIZES), dtype=torch.int64)
    targets = Targets(
        *(classes, classes),
        objects=objects._replace(boxes=objects.boxes.double()),
        sizes=torch.tensor(SIZES),
    )
    found = head.losses(ours.model(images, None, ours.wanted), targets, keys)  # type: ignore[operator]
    levels = list(theirs.backbone(images).values())
    each = list[dict[str, Tensor]]()
    for i in range(len(SIZES)):
        choosing(HEADS, theirs.rpn, theirs.roi_heads, keys[0], objects, [i])
        own = [level[i : i + 1] for level in levels]
        each.append(losses_of(theirs.rpn, theirs.roi_heads, own, objects, [i], SIZES, CANVAS))
    theirs.eval()
    for name, loss in found.items():
        wanted = float(torch.stack([losses[name] for losses in each]).mean().detach())
        assert wanted > 0.01, name
        # torchvision has float32 numbers for which anchors are objects
        rel = 1e-6 if name == "loss_objectness" else 1e-8
        assert float(loss.detach()) == pytest.approx(wanted, rel=rel), name
    torch.stack(list(found.values())).sum().backward()
    total = torch.stack([loss for losses in each for loss in losses.values()]).sum()
    (total / len(SIZES)).backward()
    named = dict(ours.named_parameters())
    for name, p in theirs.named_parameters():
        mine = named[ours_of(name)]
        assert mine.grad is not None and p.grad is not None, name
        apart = float((mine.grad - p.grad).norm() / p.grad.norm())
        assert apart < 1e-5, (name, apart)


@pytest.mark.slow
def test_predictions_are_torchvisions(ours: Task, theirs: Any, images: Tensor):
    with torch.no_grad():
        images = images[1:2]
        found = ours.predictions(images)
        levels = theirs.backbone(images)
        shapes: list[tuple[int, int]] = [CANVAS]
        proposals, _ = theirs.rpn(ImageList(images, shapes), levels)
        wanted, _ = theirs.roi_heads(OrderedDict(levels), proposals, shapes)
    for i, each in enumerate(wanted):
        count = len(each["scores"])
        assert count > 20
        torch.testing.assert_close(found["scores"][i, :count], each["scores"], rtol=1e-8, atol=0)
        assert not found["scores"][i, count:].any()
        assert torch.equal(found["classes"][i, :count] + 1, each["labels"])
        torch.testing.assert_close(found["boxes"][i, :count], each["boxes"], rtol=0, atol=1e-7)
        wide = (each["boxes"][:, 2:] - each["boxes"][:, :2]).amin(dim=1) > 4
        masks = each["masks"][wide, 0]
        assert len(masks) > 20
        torch.testing.assert_close(found["masks"][i, :count][wide], masks, rtol=1e-7, atol=0)
