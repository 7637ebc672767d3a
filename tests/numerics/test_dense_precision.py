"""In half precision heads of dense tasks compute products: losses, norms, boxes, overlaps,
suppression, features of boxes and resizing stay float32, as under torch's autocast."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from test_mask_rcnn import SIZES, some_objects
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList

from bigvit.data.prepare import Inputs, Targets
from bigvit.models.output import TokenMap
from bigvit.recipe import MaskRCNN, Recipe, Segmentation, UperNet
from bigvit.recipes.detection import scenes_mask_rcnn
from bigvit.recipes.segmentation import scenes_swin_64
from bigvit.task import Task

HALF = torch.bfloat16, torch.float16
SIDE = 128
WIDE = {
    *("nms", "roi_align", "_roi_align", "log", "log2", "exp", "sqrt", "topk", "sort", "clamp"),
    *("nll_loss", "_log_softmax", "smooth_l1_loss", "binary_cross_entropy_with_logits", "sigmoid"),
    *("native_batch_norm", "native_group_norm", "upsample_bilinear2d", "minimum", "maximum"),
}
"""Without `_forward` and `_backward`. What a trunk does is as for classification."""


def uper(norm: Any) -> Recipe:
    head = replace(scenes_swin_64.objectives[0], norm=norm)
    assert isinstance(head, UperNet) and isinstance(scenes_swin_64.data, Segmentation)
    return replace(scenes_swin_64, objectives=(head,))


RECIPES = {
    "boxes": replace(scenes_mask_rcnn, data=replace(scenes_mask_rcnn.data, image_size=SIDE)),
    "pixels, norms of batches": uper("batch"),
    "pixels, norms of groups": uper("group"),
}


class Half(TorchDispatchMode):
    """Names of operations that read or make numbers of half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, found))
        if any(isinstance(each, Tensor) and each.dtype in HALF for each in leaves):
            self.seen.add(func._schema.name.partition("::")[2])
        return found


def inputs(recipe: Recipe, task: Task) -> Inputs:
    size = recipe.data.image_size
    assert isinstance(size, int)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, 3, size, size, generator=generator)
    zeros = torch.zeros(4, dtype=torch.int64)
    labels = torch.randint(recipe.data.classes, (4, size, size), generator=generator)
    sizes = [*SIZES, (SIDE, SIDE)]
    objects = some_objects(1, sizes)
    targets = Targets(
        zeros, torch.zeros(4, 1), labels=labels, objects=objects, sizes=torch.tensor(sizes)
    )
    return Inputs(images, targets, task.draws(0, (0, 4)), 0)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", RECIPES)
def test_only_products_and_what_moves_numbers_are_half(name: str, dtype: torch.dtype) -> None:
    recipe = RECIPES[name]
    task = Task(recipe)
    task.init_weights()
    given = inputs(recipe, task)
    whole = sum(float(loss.detach()) for loss in task(given).values())
    task.to(dtype)
    with Half() as half:
        losses = task(given)
        loss = torch.stack(list(losses.values())).sum()
        if dtype == torch.bfloat16:  # fp16's backward is slow on a CPU
            loss.backward()
        with torch.no_grad():
            said = task.predictions(given.images)
    assert loss.dtype == torch.float32
    # a few of bf16's steps of 2^-8: logits are rounded so at their layers' ends
    assert abs(loss.item() - whole) < 4 * 2**-8 * whole
    assert {x.dtype for x in said.values()} <= {torch.float32, torch.int64}
    assert half.seen >= {"addmm", "convolution"}
    bare = {op.removesuffix("_backward").removesuffix("_forward") for op in half.seen}
    assert not bare & WIDE


def test_boxes_of_large_images_are_exact_in_bf16() -> None:
    """bfloat16 tells 1,336 from 1,344, and nothing between."""
    (head,) = scenes_mask_rcnn.objectives
    assert isinstance(head, MaskRCNN)
    side = 1344
    recipe = replace(
        scenes_mask_rcnn,
        data=replace(scenes_mask_rcnn.data, image_size=side),
        objectives=(replace(head, anchors=(33, 66, 132, 264, 527), proposals=(8, 1000)),),
    )
    task = Task(recipe).to(torch.bfloat16)
    boxes: Any = task.answering
    shapes = [side // stride for stride in (4, 8, 16, 32, 64)]
    levels = [torch.zeros(1, head.channels, n, n, dtype=torch.bfloat16) for n in shapes]
    theirs = AnchorGenerator(
        tuple((n,) for n in (33, 66, 132, 264, 527)), (head.ratios,) * len(levels)
    )
    wide = [level.float() for level in levels]
    (anchors,) = theirs(ImageList(torch.zeros(1, 3, side, side), [(side, side)]), wide)
    boxes.head.pyramid.forward = lambda blocks: levels
    with torch.no_grad():
        for p in boxes.head.rpn.parameters():
            p.zero_()  # each proposal is its anchor
        nothing = torch.zeros(1, 0)
        blocks = {
            block: TokenMap(nothing, (side // stride, side // stride))
            for block, stride in zip(boxes.wanted, (4, 8, 16, 32), strict=True)
        }
        output: Any = type("Output", (), {"blocks": blocks})
        seen = boxes._seen(output)
        proposed = boxes._proposed(seen, 0, torch.tensor([1333, 1341]), testing=True)
    assert torch.equal(seen.anchors, anchors)
    found = proposed.boxes[proposed.there]
    assert found.dtype == torch.float32 and len(found) > 100
    limit = torch.tensor([1341, 1333, 1341, 1333.0])
    clipped = torch.minimum(anchors.clamp(min=0), limit)
    # offsets of 0 leave a side and a centre as they are, but for float32's rounding
    apart = torch.cdist(found, clipped, p=torch.inf).min(dim=1).values
    assert apart.max() < 4 * 1344 * 2**-23
