"""Mask R-CNN's losses on a trunk's maps (arXiv:1703.06870), and its predictions. What torchvision
has is torchvision's: modules, anchors, offsets of boxes, overlaps, suppression and RoIAlign.

Differs from torchvision's: each image's losses are its own, and images are averaged (theirs are
means over a micro-batch's boxes); masks are compared at two points of each of their cells along
each axis (theirs: as many as there are pixels); boxes are drawn by a key of the image's place.

Shapes: B images, C channels, K classes, A anchors, P proposals, S samples, O objects of all images
of a micro-batch, and one that is none's.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.models.detection._utils import BoxCoder
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import batched_nms, clip_boxes_to_image

from bigvit import keyed_random, recipe
from bigvit.data.objects import Objects
from bigvit.data.prepare import Targets
from bigvit.layers.rois import Atlas
from bigvit.models.mask_rcnn import Head, begin
from bigvit.models.output import Output
from bigvit.objectives.objective import Objective
from bigvit.objectives.sampling import mask_targets, match, priorities, sample
from bigvit.recipe import Recipe, sides
from bigvit.recipe.detection import BOX_CELLS, DETECTIONS, MASK_CELLS, looked_at

OF_ANCHORS, OF_BOXES = (1.0, 1.0, 1.0, 1.0), (10.0, 10.0, 5.0, 5.0)
"""Factors of offsets: one over their deviation."""
ANCHOR_OVERLAPS, BOX_OVERLAPS = (0.7, 0.3), (0.5, 0.5)
"""From which a box is an object's, and below which it is none's."""
MASK_SAMPLING = 2  # of a mask's target
LEAST = 1e-3  # side of a proposal, pixels
LEAST_BOX = 1e-2  # of a prediction


class Proposed(NamedTuple):
    """Proposals of an image, the best first, as many as there is room for."""

    boxes: Tensor  # (P, 4)
    there: Tensor  # (P,) bool: the others fill it


class Sampled(NamedTuple):
    """Boxes of all images that are trained, and what they are to be."""

    boxes: Tensor  # (B, S, 4)
    which: Tensor  # (B, S): the object that each is of, if it is of one
    positive: Tensor  # (B, S) bool: whether it is; those come first
    counted: Tensor  # (B, S) bool


class Seen(NamedTuple):
    """What a forward pass makes of images."""

    size: tuple[int, int]  # of the canvas: height and width, pixels
    levels: list[Tensor]  # (B, C, h, w) each
    counts: list[int]  # anchors of each
    logits: Tensor  # (B, A) of there being something
    offsets: Tensor  # (B, A, 4)
    anchors: Tensor  # (A, 4)
    objects: Objects


class BoxesAndMasks(Objective):
    """What `recipe.MaskRCNN` says."""

    answers = True

    def __init__(self, objective: recipe.MaskRCNN, whole: Recipe) -> None:
        super().__init__("detection", objective.weight)
        maps = whole.model.maps(whole.data.image_size)
        self.config, self.wanted = objective, tuple(looked_at(maps))
        dims, (down, _) = [maps[i][0] for i in self.wanted], maps[self.wanted[0]][1]
        self.head = Head(objective, dims, whole.data.classes)
        self.stride = sides(whole.data.image_size)[0] // down  # of the finest map, pixels
        ratios = (objective.ratios,) * len(objective.anchors)
        self.anchors = AnchorGenerator(tuple((side,) for side in objective.anchors), ratios)
        self.of_anchors, self.of_boxes = BoxCoder(OF_ANCHORS), BoxCoder(OF_BOXES)

    def begin(self, name: str, value: Tensor, generator: torch.Generator) -> Tensor | None:
        return begin(f".{name}", value, generator)

    def draws(self, name: str, seed: int, number: int, span: tuple[int, int]) -> tuple[Tensor, ...]:
        """Of each image two keys (B, 2) below 2**32: what anchors, and what proposals, are drawn
        by."""
        keys = [keyed_random.bits(2, "boxes", name, seed, number, at) for at in range(*span)]
        return (torch.from_numpy((np.stack(keys) >> np.uint64(32)).astype(np.int64)),)

    def forward(self, output: Output, targets: Targets, draws: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(self.losses(output, targets, draws).values())).sum()

    def losses(
        self, output: Output, targets: Targets, draws: Sequence[Tensor]
    ) -> dict[str, Tensor]:
        """The five terms, by torchvision's names."""
        assert targets.objects is not None and targets.sizes is not None
        (keys,) = draws
        seen = self._seen(output, targets.objects)
        found = list[tuple[Tensor, Tensor]]()
        sampled = list[Sampled]()
        for i in range(len(keys)):
            own = seen.objects.of == i
            found.append(self._anchor_losses(seen, i, own, keys[i, 0]))
            with torch.no_grad():
                proposed = self._proposed(seen, i, targets.sizes[i], testing=False)
                sampled.append(self._sampled(proposed, seen.objects, own, keys[i, 1]))
        many = Sampled(*map(torch.stack, zip(*sampled, strict=True)))
        objectness, anchor_boxes = map(torch.stack, zip(*found, strict=True))
        atlas = self._atlas(seen)
        classified, boxes = self._box_losses(atlas, many, seen.objects)
        return {
            "loss_objectness": objectness.mean(),
            "loss_rpn_box_reg": anchor_boxes.mean(),
            "loss_classifier": classified,
            "loss_box_reg": boxes,
            "loss_mask": self._mask_loss(atlas, many, seen.objects, seen.size),
        }

    def _seen(self, output: Output, objects: Objects | None = None) -> Seen:
        levels = self.head.pyramid([output.blocks[block] for block in self.wanted])
        logits, offsets = self.head.anchored(levels)
        height, width = output.blocks[self.wanted[0]].grid
        size = height * self.stride, width * self.stride
        # of a canvas, which is not looked at
        canvas = logits.new_empty(1).expand(1, 1, *size)
        wide = [logits.new_empty(1).expand(1, 1, *level.shape[2:]) for level in levels]
        (anchors,) = self.anchors(ImageList(canvas, [size]), wide)
        counts = [len(self.config.ratios) * level[0, 0].numel() for level in levels]
        return Seen(size, levels, counts, logits, offsets, anchors, _and_none(objects, logits))

    def _atlas(self, seen: Seen) -> Atlas:
        finer = seen.levels[:-1]  # the last one has anchors alone
        return Atlas(finer, [seen.size[0] / level.shape[2] for level in finer])

    def _anchor_losses(
        self, seen: Seen, image: int, own: Tensor, key: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Of one image: whether there is something at an anchor, and where."""
        count, objects = self.config.anchor_samples, seen.objects
        with torch.no_grad():
            which, label = match(seen.anchors, objects.boxes, own, *ANCHOR_OVERLAPS, rescue=True)
            order = priorities(key, torch.arange(len(label), device=key.device))
            chosen, positive, counted = sample(label, order, count, count // 2)
            anchors = seen.anchors[chosen]
            boxes = torch.where(positive[:, None], objects.boxes[which[chosen]], anchors)
            wanted = self.of_anchors.encode_single(boxes, anchors)
            many = counted.sum().clamp(min=1)
        logits, offsets = seen.logits[image][chosen], seen.offsets[image][chosen]
        there = F.binary_cross_entropy_with_logits(
            logits, positive.to(logits.dtype), counted.to(logits.dtype), reduction="sum"
        )
        return there / many, (self._apart(offsets, wanted) * positive).sum() / many

    def _apart(self, offsets: Tensor, wanted: Tensor) -> Tensor:
        """The loss of each box (...)."""
        beta = self.config.beta
        return F.smooth_l1_loss(offsets, wanted, reduction="none", beta=beta).sum(dim=-1)

    def _proposed(self, seen: Seen, image: int, limit: Tensor, testing: bool) -> Proposed:
        """Args: limit: height and width of the image (2,)."""
        config, start = self.config, 0
        best, levels = list[Tensor](), list[Tensor]()
        logits, offsets = seen.logits[image].detach(), seen.offsets[image].detach()
        for level, count in enumerate(seen.counts):
            few = min(config.candidates[testing], count)
            best.append(logits[start : start + count].topk(few).indices + start)
            levels.append(torch.full_like(best[-1], level))
            start += count
        chosen, level = torch.cat(best), torch.cat(levels)
        boxes = self.of_anchors.decode_single(offsets[chosen], seen.anchors[chosen])
        most = limit.flip(0).repeat(2).to(boxes.dtype)
        boxes = torch.minimum(boxes.clamp(min=0), most)
        large = _at_least(boxes, LEAST)
        # last, and so in nobody's way
        score = torch.where(large, logits[chosen], -torch.inf)
        room = min(config.proposals[testing], len(boxes))
        kept = batched_nms(boxes, score, level, config.proposal_overlap)[:room]
        return Proposed(_filled(boxes[kept], room), _filled(large[kept], room))

    def _sampled(self, proposed: Proposed, objects: Objects, own: Tensor, key: Tensor) -> Sampled:
        """Of one image."""
        boxes = torch.cat([proposed.boxes, objects.boxes])
        which, label = match(boxes, objects.boxes, own, *BOX_OVERLAPS, rescue=False)
        label = torch.where(torch.cat([proposed.there, own]), label, -1)
        # an object by its place in its image: those of other images differ with the micro-batch
        room = torch.arange(len(proposed.boxes), device=key.device)
        places = torch.cat([room, len(room) - 1 + own.cumsum(0)])
        count, order = self.config.samples, priorities(key, places)
        chosen, positive, counted = sample(label, order, count, count // 4)
        return Sampled(boxes[chosen], which[chosen], positive, counted)

    def _box_losses(
        self, atlas: Atlas, sampled: Sampled, objects: Objects
    ) -> tuple[Tensor, Tensor]:
        """What boxes show, and where it lies exactly."""
        boxes, which, positive, counted = sampled
        config, shape = self.config, which.shape
        features = atlas.align(boxes, BOX_CELLS, config.sampling, config.aligned)
        logits, offsets = self.head.boxes(features)
        classes = _classes(sampled, objects)
        losses = F.cross_entropy(logits, classes.flatten(), reduction="none").view(shape)
        offsets = offsets.gather(1, classes.view(-1, 1, 1).expand(-1, 1, 4)).view(*shape, 4)
        with torch.no_grad():
            seen = torch.where(counted[..., None], boxes, objects.boxes[-1])
            meant = torch.where(positive[..., None], objects.boxes[which], seen)
            wanted = self.of_boxes.encode_single(meant.flatten(0, 1), seen.flatten(0, 1))
            many = counted.sum(dim=1).clamp(min=1)
        apart = self._apart(offsets, wanted.view(*shape, 4)) * positive
        return ((losses * counted).sum(dim=1) / many).mean(), (apart.sum(dim=1) / many).mean()

    def _mask_loss(
        self, atlas: Atlas, sampled: Sampled, objects: Objects, size: tuple[int, int]
    ) -> Tensor:
        """Which pixels of a box are its object's; of the places where objects' boxes stand."""
        config, most = self.config, min(self.config.samples // 4, sampled.which.shape[1])
        boxes, which, positive, _ = first = Sampled(*(each[:, :most] for each in sampled))
        features = atlas.align(boxes, MASK_CELLS, config.sampling, config.aligned)
        logits = self.head.masks(features, _classes(first, objects).flatten())
        place, flat = which.flatten(), boxes.flatten(0, 1)
        with torch.no_grad():
            packed = objects.bits, objects.frames[place], objects.starts[place]
            cells = logits.shape[-1]
            wanted = mask_targets(*packed, flat, size, cells, MASK_SAMPLING, config.aligned)
        losses = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        of_boxes = losses.mean(dim=(1, 2)).view(which.shape) * positive
        return (of_boxes.sum(dim=1) / positive.sum(dim=1).clamp(min=1)).mean()

    def answer(self, output: Output, size: tuple[int, int]) -> dict[str, Tensor]:
        """Of each image 100 objects, the best first: boxes (B, 100, 4) on the canvas, scores
        (B, 100), 0 where there is none, classes (B, 100), and masks (B, 100, 28, 28), how likely
        each part of a box is the object's."""
        seen = self._seen(output)
        limit = torch.full_like(seen.anchors[0, :2], size[0])
        limit[1] = size[1]
        each = [self._proposed(seen, i, limit, testing=True) for i in range(len(seen.logits))]
        boxes = torch.stack([one.boxes for one in each])
        atlas, config = self._atlas(seen), self.config
        features = atlas.align(boxes, BOX_CELLS, config.sampling, config.aligned)
        logits, offsets = self.head.boxes(features)
        found = self.of_boxes.decode_single(offsets.flatten(1), boxes.flatten(0, 1))
        scores = logits.softmax(dim=1).unflatten(0, boxes.shape[:2])
        found = found.view(*scores.shape, 4)
        best = [
            self._best(found[i], scores[i] * one.there[:, None], size) for i, one in enumerate(each)
        ]
        boxes, scores, classes = map(torch.stack, zip(*best, strict=True))
        features = atlas.align(boxes, MASK_CELLS, config.sampling, config.aligned)
        masks = self.head.masks(features, classes.flatten() + 1).sigmoid()
        masks = masks.unflatten(0, scores.shape)
        return {"boxes": boxes, "scores": scores, "classes": classes, "masks": masks}

    def _best(
        self, boxes: Tensor, scores: Tensor, size: tuple[int, int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """An image's boxes (100, 4), scores (100,) and classes (100,), of those of all classes
        (P, 1 + K, 4) and (P, 1 + K), the first of which is none."""
        classes = torch.arange(scores.shape[1] - 1, device=scores.device).expand(len(scores), -1)
        boxes, scores = boxes[:, 1:].reshape(-1, 4), scores[:, 1:].flatten()
        boxes = clip_boxes_to_image(boxes, size)
        good = (scores > self.config.least_score) & _at_least(boxes, LEAST_BOX)
        boxes, scores, classes = boxes[good], scores[good], classes.flatten()[good]
        kept = batched_nms(boxes, scores, classes, self.config.overlap)[:DETECTIONS]
        found = boxes[kept], scores[kept], classes[kept]
        boxes, scores, classes = (_filled(each, DETECTIONS) for each in found)
        return boxes, scores, classes


def _and_none(objects: Objects | None, like: Tensor) -> Objects:
    """Objects with one more, which is no image's: so there always is one."""
    whole = torch.zeros(1, dtype=torch.int64, device=like.device)
    box = torch.zeros_like(like[0, :1]).expand(1, 4).clone()
    box[:, 2:] += 1
    none = Objects(whole - 1, box, whole, whole.expand(1, 4), whole, whole[:0].to(torch.uint8))
    if objects is None:
        return none
    objects = objects._replace(boxes=objects.boxes.to(like.dtype))
    return Objects(*(torch.cat(pair) for pair in zip(objects, none, strict=True)))


def _classes(sampled: Sampled, objects: Objects) -> Tensor:
    """Of sampled boxes, 0 for none (B, S)."""
    return torch.where(sampled.positive, objects.classes[sampled.which] + 1, 0)


def _at_least(boxes: Tensor, side: float) -> Tensor:
    """Whether boxes (N, 4) have such sides or longer ones (N,)."""
    return ((boxes[:, 2:] - boxes[:, :2]) >= side).all(dim=1)


def _filled(values: Tensor, room: int) -> Tensor:
    """Values (N, ...) with zeros behind them (room, ...)."""
    return torch.cat([values, values.new_zeros(room - len(values), *values.shape[1:])])
