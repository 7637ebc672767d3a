"""Mask R-CNN's losses and predictions are torchvision's, with the same weights and samples."""

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.models.detection import roi_heads
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork
from torchvision.ops import MultiScaleRoIAlign, roi_align

from bigvit import objectives
from bigvit.data.objects import NONE, Objects, OwnObjects, joined
from bigvit.data.prepare import Targets
from bigvit.layers.rois import Atlas
from bigvit.models.output import Output, TokenMap
from bigvit.objectives.sampling import priorities
from bigvit.recipe.detection import MaskRCNN
from bigvit.recipes.detection import scenes_mask_rcnn
from bigvit.task import Task

CLASSES, SIDE = 4, 128
SIZES = [(128, 96), (80, 128), (128, 128)]
TURNED, STANDING = (192, 128), [(192, 96), (100, 90), (150, 128)]
"""A canvas of 128 x 192, and images on it."""
CANVASES = {(SIDE, SIDE): SIZES, TURNED: STANDING}
CONFIG = replace(
    scenes_mask_rcnn.objectives[0],
    anchors=(16, 32, 48, 64, 96),
    candidates=(200, 200),
    proposals=(100, 100),
    samples=64,
    beta=1 / 9,
    sampling=2,
    aligned=False,
)
assert isinstance(CONFIG, MaskRCNN)
RECIPE = replace(
    scenes_mask_rcnn, objectives=(CONFIG,), data=replace(scenes_mask_rcnn.data, image_size=SIDE)
)


def some_objects(seed: int, sizes=SIZES, none=1) -> Objects:
    """Random rectangles of images, of 30 to 55 pixels, and masks within them; one has none."""
    random = np.random.default_rng(seed)
    images = []
    for image, (height, width) in enumerate(sizes):
        count = 0 if image == none else 3
        low = random.uniform(0, [width - 56, height - 56], (count, 2))
        boxes = np.concatenate([low, low + random.uniform(30, 55, (count, 2))], 1)
        first, last = np.floor(boxes[:, :2]), np.ceil(boxes[:, 2:])
        frames = np.concatenate([first, last - first], 1).astype(np.int64)
        bits = [np.packbits(random.random(int(w * h)) < 0.6) for _, _, w, h in frames]
        classes = random.integers(0, CLASSES, count)
        images.append(OwnObjects(boxes.astype(np.float32), classes, frames, bits))
    return joined(images)


def masks_of(objects: Objects, size: tuple[int, int] = (SIDE, SIDE)) -> torch.Tensor:
    found = torch.zeros(len(objects.of), *size, dtype=torch.float64)
    for i, (left, top, width, height) in enumerate(objects.frames.tolist()):
        bits = np.unpackbits(objects.bits[objects.starts[i] :].numpy(), count=width * height)
        found[i, top : top + height, left : left + width] = torch.from_numpy(
            bits.reshape(height, width)
        )
    return found


def randomised(head: nn.Module, seed: int) -> None:
    """Weights that make overlapping boxes of all classes, so that each rule is asked."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in head.named_parameters():
        scale = 1.5 / p[0].numel() ** 0.5 if p.ndim > 1 else 0.1
        scale *= 0.3 if "bbox_pred" in name else 1
        with torch.no_grad():
            p.normal_(0, scale, generator=generator)


def built(canvas: tuple[int, int]) -> Any:
    """As for images that lie."""
    data = replace(RECIPE.data, image_size=(min(canvas), max(canvas)))
    objective = objectives.build(CONFIG, replace(RECIPE, data=data)).double().eval()
    randomised(objective, 0)
    return objective


@pytest.fixture(scope="module")
def ours():
    return built((SIDE, SIDE))


def some_output(seed: int, canvas: tuple[int, int] = (SIDE, SIDE)) -> Output:
    images, generator = len(SIZES), torch.Generator().manual_seed(seed)
    maps = RECIPE.model.maps(canvas)
    blocks = {}
    for block in (0, 1, 3, 4):
        dim, (h, w) = maps[block]
        x = torch.randn(images, h * w, dim, generator=generator, dtype=torch.float64)
        blocks[block] = TokenMap(x.requires_grad_(), (h, w))
    nothing = torch.zeros(images, 1)
    return Output(nothing, nothing, (1, 1), nothing, blocks)


def targets_of(objects: Objects, sizes=SIZES) -> Targets:
    classes = torch.zeros(len(sizes), dtype=torch.int64)
    objects = objects._replace(boxes=objects.boxes.double())
    return Targets(classes, classes, objects=objects, sizes=torch.tensor(sizes))


class Chosen:
    """Takes those of the highest priority, by sorting: what torchvision draws by chance."""

    def __init__(self, keys: Any, count: int, most: int, room: Any = None, own: Any = None):
        self.keys, self.count, self.most, self.room, self.own = keys, count, most, room, own

    def __call__(self, labels):
        found = [], []
        for image, label in enumerate(labels):
            places = torch.arange(len(label))
            if self.room is not None:  # ours have room for proposals
                count = len(self.own[image])
                left = len(label) - count
                places = torch.cat([places[:left], self.room + places[:count]])
            order = priorities(self.keys[image], places)
            masks = []
            for which, most in (((label >= 1), self.most), (label == 0, self.count)):
                best = sorted(which.nonzero()[:, 0].tolist(), key=lambda i: -int(order[i]))
                left = most - (int(masks[0].sum()) if masks else 0)
                mask = torch.zeros(len(label), dtype=torch.uint8)
                mask[best[:left]] = 1
                masks.append(mask)
            for each, mask in zip(found, masks, strict=True):
                each.append(mask)
        return found


def libraries(ours, keys, objects, images) -> tuple[Any, Any]:
    """torchvision's two halves around our modules, for some images."""
    head, config = ours.head, ours.config
    pairs = {"training": 0, "testing": 1}
    rpn: Any = RegionProposalNetwork(
        AnchorGenerator(tuple((s,) for s in config.anchors), ((0.5, 1.0, 2.0),) * 5),
        head.rpn,
        *(0.7, 0.3, config.anchor_samples, 0.5),
        {name: config.candidates[i] for name, i in pairs.items()},
        {name: config.proposals[i] for name, i in pairs.items()},
        config.proposal_overlap,
    )
    names = ["0", "1", "2", "3"]
    rois: Any = RoIHeads(
        *(MultiScaleRoIAlign(names, 7, 2), head.box_head, head.box_predictor),
        *(0.5, 0.5, config.samples, 0.25, None, config.least_score, config.overlap, 100),
        *(MultiScaleRoIAlign(names, 14, 2), head.mask_head, head.mask_predictor),
    )
    choosing(config, rpn, rois, keys, objects, images)
    return rpn, rois


def choosing(config, rpn, rois, keys, objects, images) -> None:
    """Let them train what we do."""
    rpn.fg_bg_sampler = Chosen(
        keys[images][:, 0], config.anchor_samples, config.anchor_samples // 2
    )
    own = [(objects.of == image).nonzero()[:, 0] for image in images]
    room = config.proposals[0]
    rois.fg_bg_sampler = Chosen(keys[images][:, 1], config.samples, config.samples // 4, room, own)


def their_losses(ours, output, objects, keys, images, canvas):
    rpn, rois = libraries(ours, keys, objects, images)
    chosen = [TokenMap(output.blocks[b].tokens[images], output.blocks[b].grid) for b in ours.wanted]
    levels = ours.head.pyramid(chosen)
    return losses_of(rpn, rois, levels, objects, images, CANVASES[canvas], canvas)


def losses_of(rpn, rois, levels, objects, images, sizes, canvas=(SIDE, SIDE)):
    """torchvision's, of a pyramid's levels on a canvas of this height and width."""
    rpn.train()
    rois.train()
    features = OrderedDict(zip(("0", "1", "2", "3", "pool"), levels, strict=True))
    blank = torch.zeros(len(images), 3, *canvas, dtype=torch.float64)
    masks = masks_of(objects, canvas)
    targets = [
        {
            "boxes": objects.boxes[objects.of == i].double(),
            "labels": objects.classes[objects.of == i] + 1,
            "masks": masks[objects.of == i],
        }
        for i in images
    ]
    shapes = [sizes[i] for i in images]
    proposals, first = rpn(ImageList(blank, shapes), features, targets)
    # levels of boxes from the canvas, as ours: by itself it infers them from the images' sizes
    for pool in (rois.box_roi_pool, rois.mask_roi_pool):
        pool(features, [torch.zeros(1, 4, dtype=torch.float64)], [canvas])
    _, second = rois(features, proposals, shapes, targets)
    return {**first, **second}


@pytest.mark.parametrize("canvas", CANVASES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_losses_are_torchvisions(canvas, seed, monkeypatch):
    """Five terms in float64, image by image, and gradients of all weights by their sum; masks at
    two points of a cell along each axis."""

    def projected(masks, boxes, which, cells):
        rois = torch.cat([which[:, None].to(boxes), boxes], 1)
        return roi_align(masks[:, None].to(boxes), rois, (cells, cells), 1.0, 2)[:, 0]

    monkeypatch.setattr(roi_heads, "project_masks_on_boxes", projected)
    ours, sizes = built(canvas), CANVASES[canvas]
    output, objects = some_output(seed, canvas), some_objects(seed, sizes)
    keys = ours.draws("detection", seed, 5, (8, 8 + len(sizes)))
    found = ours.losses(output, targets_of(objects, sizes), keys)
    each = [their_losses(ours, output, objects, keys[0], [i], canvas) for i in range(len(sizes))]
    for name, loss in found.items():
        wanted = torch.stack([losses[name] for losses in each]).mean()
        wanted, loss = float(wanted.detach()), float(loss.detach())
        assert wanted > 0.01, name
        # torchvision has float32 numbers for which anchors are objects
        assert loss == pytest.approx(wanted, rel=1e-6 if name == "loss_objectness" else 1e-9), name
    weights = [p for p in ours.parameters()]
    own = torch.autograd.grad(torch.stack(list(found.values())).sum(), weights)
    total = torch.stack([loss for losses in each for loss in losses.values()]).sum() / len(SIZES)
    for a, b in zip(own, torch.autograd.grad(total, weights), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-8)
    drawn = ours.draws("detection", seed, 6, (8, 11))
    other = ours.losses(output, targets_of(objects, sizes), drawn)
    assert not torch.equal(other["loss_classifier"], found["loss_classifier"])


@pytest.mark.parametrize("samples", [64, 4])
def test_losses_of_images_are_averaged(samples):
    """However they are cut, also where not all objects are trained; of no objects at all, too."""
    ours = built((SIDE, SIDE))
    ours.config = replace(ours.config, samples=samples)
    output, objects = some_output(7), some_objects(7)
    (keys,) = ours.draws("detection", 0, 0, (0, 3))
    whole = ours(output, targets_of(objects), (keys,))
    parts = []
    for i in range(3):
        one = {b: TokenMap(x.tokens[i : i + 1], x.grid) for b, x in output.blocks.items()}
        own = some_objects(7)
        mine = [own.of == i]
        boxes, classes, frames, starts = (x[mine[0]] for x in own[1:5])
        kept = Objects(own.of[mine[0]] - i, boxes, classes, frames, starts, own.bits)
        targets = targets_of(kept, SIZES[i : i + 1])
        parts.append(ours(output._replace(blocks=one), targets, (keys[i : i + 1],)))
    assert torch.allclose(whole, torch.stack(parts).mean(), rtol=1e-9)
    nobody = joined([NONE] * 3)
    loss = ours.losses(output, targets_of(nobody), (keys,))
    zero = ("loss_rpn_box_reg", "loss_box_reg", "loss_mask")
    assert not torch.stack([loss[name] for name in zero]).any()
    gradients = torch.autograd.grad(
        torch.stack(list(loss.values())).sum(), list(ours.parameters()), allow_unused=True
    )
    assert all(g is not None and bool(g.isfinite().all()) for g in gradients)


@pytest.mark.parametrize("canvas", CANVASES)
def test_predictions_are_torchvisions(canvas):
    ours, output = built(canvas), some_output(3, canvas)
    with torch.no_grad():
        if canvas == TURNED:  # nothing is kept of a batch that lies
            ours.answer(some_output(4, canvas[::-1]), canvas[::-1])
        found = ours.answer(output, canvas)
        rpn, rois = libraries(ours, torch.zeros(3, 2), some_objects(0), [0, 1, 2])
        rpn.eval()
        rois.eval()
        levels = ours.head.pyramid([output.blocks[b] for b in ours.wanted])
        features = OrderedDict(zip(("0", "1", "2", "3", "pool"), levels, strict=True))
        shapes = [canvas] * 3
        shown = torch.zeros(3, 3, *canvas, dtype=torch.float64)
        proposals, _ = rpn(ImageList(shown, shapes), features)
        wanted, _ = rois(features, proposals, shapes)
    assert {name: tuple(x.shape) for name, x in found.items()} == {
        "boxes": (3, 100, 4),
        "scores": (3, 100),
        "classes": (3, 100),
        "masks": (3, 100, 28, 28),
    }
    for i, each in enumerate(wanted):
        count = len(each["scores"])
        assert count > 20
        assert torch.allclose(found["scores"][i, :count], each["scores"], rtol=1e-9)
        assert not found["scores"][i, count:].any()
        assert torch.equal(found["classes"][i, :count] + 1, each["labels"])
        assert torch.allclose(found["boxes"][i, :count], each["boxes"], atol=1e-8)
        assert torch.allclose(found["masks"][i, :count], each["masks"][:, 0], rtol=1e-8)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("sampling", [0, 2])
def test_features_of_boxes_are_those_of_each_level(aligned, sampling):
    generator = torch.Generator().manual_seed(0)
    levels = [torch.randn(2, 3, 160 // 2**i, 128 // 2**i, generator=generator) for i in range(4)]
    strides = [4.0, 8.0, 16.0, 32.0]
    low = torch.rand(2, 60, 2, generator=generator) * torch.tensor([500.0, 600])
    boxes = torch.cat([low, low + torch.rand(2, 60, 2, generator=generator) ** 3 * 600 + 4], -1)
    boxes = torch.minimum(boxes, torch.tensor([512.0, 640, 512, 640]))
    boxes[:, :4] = torch.tensor(
        [[0.0, 0, 512, 640], [0, 0, 9, 9], [500, 630, 512, 640], [0, 0, 0, 0]]
    )
    levels, boxes = [level.double() for level in levels], boxes.double()
    found = Atlas(levels, strides).align(boxes, 7, sampling, aligned)
    side = ((boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])).sqrt()
    level = (4 + (side / 224).log2() + 1e-6).floor().clamp(2, 5).long() - 2
    assert level.unique().tolist() == [0, 1, 2, 3]
    for image in range(2):
        for i in range(60):
            at = int(level[image, i])
            one = roi_align(
                levels[at][image : image + 1],
                [boxes[image, i : i + 1]],
                *(7, 1 / strides[at], sampling or -1, aligned),
            )
            assert torch.allclose(found[image * 60 + i], one[0], atol=1e-11)


def test_initial_weights():
    """What each layer begins as, by torchvision's and mmdetection's rules."""
    task = Task(RECIPE)
    weights = {
        name.removeprefix("heads.detection.head."): task.initial_weight(name)
        for name, _ in task.named_parameters()
        if name.startswith("heads.")
    }
    stds = {
        "rpn.conv.0.0.weight": 0.01,
        "rpn.cls_logits.weight": 0.01,
        "rpn.bbox_pred.weight": 0.01,
        "box_predictor.cls_score.weight": 0.01,
        "box_predictor.bbox_pred.weight": 0.001,
        "box_head.fc6.weight": (2 / (32 * 49 + 128)) ** 0.5,
        "mask_head.1.0.weight": (2 / (9 * 32)) ** 0.5,
        "mask_predictor.conv5_mask.weight": (2 / (4 * 32)) ** 0.5,
        "pyramid.fpn.layer_blocks.2.0.weight": (1 / (9 * 32)) ** 0.5,
    }
    for name, std in stds.items():
        assert float(weights[name].std()) == pytest.approx(std, rel=0.1), name
    for name, value in weights.items():
        if name.endswith("bias"):
            assert not value.any(), name
        elif ".norms." in name:
            assert torch.equal(value, torch.ones_like(value)), name


def test_a_neck_makes_four_strides_of_one():
    from bigvit.recipes.patchconvnet import of_size

    model = replace(of_size("s20"), embed_dim=24, depth=2)
    recipe = replace(RECIPE, model=model, data=replace(RECIPE.data, image_size=(128, 64)))
    task = Task(recipe).eval()
    task.init_weights()
    assert task.wanted == [1]
    norm, bias = (
        task.initial_weight(f"heads.detection.head.pyramid.neck.{n}")
        for n in ("fpn1.1.weight", "fpn2.bias")
    )
    assert torch.equal(norm, torch.ones(24)) and 0 < float(bias.abs().max()) <= 96**-0.5
    with torch.no_grad():
        output = task.model(torch.randn(2, 3, 128, 64), None, task.wanted)
        head: Any = task.objectives["detection"]
        levels = head.head.pyramid([output.blocks[1]])
        assert [tuple(x.shape[2:]) for x in levels] == [(32, 16), (16, 8), (8, 4), (4, 2), (2, 1)]
        assert task.predictions(torch.randn(2, 3, 128, 64))["boxes"].shape == (2, 100, 4)
