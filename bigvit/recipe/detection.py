"""Boxes and masks of objects: data as COCO's, and Mask R-CNN (arXiv:1703.06870) on a trunk's maps.
No torch here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from bigvit.recipe.bounds import Bound, Classes, Share, Side, T, Weight, Width, allow
from bigvit.recipe.data import Mean, Repeats, Std
from bigvit.recipe.depth import ImageSize, sides
from bigvit.recipe.models.ops import Op, conv, linear, norm
from bigvit.recipe.scene import Count, Scene, TestCount

__all__ = ["Detection", "MaskRCNN"]

Sides = Annotated[tuple[int, ...], Bound(1, 2**16)]
Anchors = Annotated[tuple[int, int, int, int, int], Bound(1, 2**16)]
Ratios = Annotated[tuple[float, ...], Bound(0.01, 100.0)]
Samples = Annotated[T, Bound(1, 10**6)]

Level = tuple[int, tuple[int, int]]
"""Width and grid of a block's tokens."""
BOX_CELLS, MASK_CELLS = 7, 14
"""Along each axis, that boxes and masks are made from."""
DETECTIONS = 100
"""Predicted objects of an image."""


@dataclass(frozen=True)
class Detection(Scene):
    """Colour images with boxes and masks of the objects in them (`--data-root`).

    An image is resized to a shorter side that is drawn, unless its longer one would be above
    `longest`, flipped, and laid into the upper left corner of a canvas of `image_size`, whose rest
    is 0 after normalising: so what becomes of it does not depend on the images beside it. A canvas
    that is not square is turned for images higher than wide; a batch is of one orientation.
    """

    dataset: str  # name of the data set
    train_images: Count  # images of its training split, those without objects left out
    test_images: TestCount  # of its testing split; None: as many as there are; 0: it has none
    classes: Classes[int]  # of objects
    image_size: ImageSize  # pixels, of the canvas: the side of a square, or (shorter, longer)
    shortest: Sides  # one of which is drawn, pixels
    longest: Side[int]  # pixels
    flip: Share[float]  # probability of a horizontal flip
    repeats: Repeats  # copies of an image in an epoch (repeated augmentation); 1 for none
    mean: Mean  # a channel's mean, of values in [0, 1]
    std: Std  # a channel's standard deviation, of values in [0, 1]
    test_shortest: Side[int]  # that a test image is resized to, pixels

    @property
    def turns(self) -> bool:
        """Whether there are two canvases: the one that lies, and the same one turned."""
        height, width = sides(self.image_size)
        return height != width

    def canvas(self, standing: bool) -> tuple[int, int]:
        """(height, width), pixels, for images that are higher than wide, or for the others."""
        height, width = sides(self.image_size)
        return (width, height) if standing else (height, width)


@dataclass(frozen=True)
class MaskRCNN:
    """The five losses of Mask R-CNN, each image's own, summed and averaged over images: so they do
    not depend on how a batch is cut.

    Maps are the last of each stage; of a trunk of one stride s the last map alone, brought to
    s / 4, s / 2, s and 2 s. The pyramid has one level more, of half the last one's sides. Anchors
    are trained on overlaps of 0.7 (an object) and 0.3 (none), boxes on 0.5; boxes see 7 x 7 cells
    of a level, masks 14 x 14, and are of 28 x 28. Of an image 100 objects are predicted at most.
    """

    weight: Weight  # factor of this loss in the sum
    normalised: bool  # whether each map goes through a LayerNorm of its own first (Swin's)
    channels: Width[int]  # of the pyramid, and of what masks are made by
    anchors: Anchors  # their side at each level, finest first, pixels
    ratios: Ratios  # height over width, of the anchors at each cell
    anchor_samples: Samples[int]  # anchors of an image that are trained, half of them objects
    # anchors of a level, the best, that are looked at: in training and testing
    candidates: Samples[tuple[int, int]]
    proposals: Samples[tuple[int, int]]  # of an image, that are left of them, likewise
    proposal_overlap: Share[float]  # above which the worse of two proposals goes
    samples: Samples[int]  # proposals of an image that are trained, a quarter of them objects
    hidden_dim: Width[int]  # width of the two layers that classify boxes
    mask_layers: Annotated[int, Bound(0, 100)]  # convolutions before masks
    beta: Share[float]  # error of a box up to which its loss is quadratic; 0: it is linear
    sampling: Annotated[int, Bound(0, 64)]  # a cell's along each axis; 0: as many as fit into it
    aligned: bool  # whether pixels' centres are at halves (detectron2), or not (torchvision's own)
    least_score: Share[float]  # of a prediction
    overlap: Share[float]  # above which the worse of two predictions of a class goes

    def check(self, path: str, maps: Sequence[Level], data: Detection) -> None:
        """Refuse what cannot be computed.

        Args:
            maps: width and grid of each block.

        Raises:
            ValueError: names the field, the value given and what is allowed.
        """
        seen, size = [maps[i][1] for i in looked_at(maps)], sides(data.image_size)
        if len(seen) not in (1, 4):
            raise ValueError(
                f"{path}: MaskRCNN is not allowed; it needs a model of four stages, or of one "
                f"stride, and this one has {len(seen)}"
            )
        # of the coarsest level but one: twice that of a trunk of one stride
        step = 2 if len(seen) == 1 else 8
        coarsest = step * -(-size[0] // seen[0][0])
        fits = all(side % coarsest == 0 for side in size)
        allowed = f"a multiple of {coarsest}, the stride of the coarsest features"
        allow("data.image_size", data.image_size, fits, allowed)
        lies = "the lower number first: it is turned for images higher than wide"
        allow("data.image_size", data.image_size, size[0] <= size[1], lies)
        (shorter, most), longest = size, data.longest
        allowed = f"1 to {most}, to lie on the canvas whichever way it is (data.image_size)"
        allow("data.longest", longest, longest <= most, allowed)
        least, of = min(longest, shorter), "longest" if longest <= shorter else "image_size"
        allowed, tested = f"1 to {least} (data.{of})", data.test_shortest
        fits = bool(data.shortest) and max(data.shortest) <= least
        allow("data.shortest", data.shortest, fits, f"one number or more, each {allowed}")
        allow("data.test_shortest", tested, tested <= least, allowed)
        allow(f"{path}.ratios", self.ratios, bool(self.ratios), "one number or more")
        allow(f"{path}.anchor_samples", self.anchor_samples, self.anchor_samples > 1, "2 or more")
        allow(f"{path}.samples", self.samples, self.samples > 3, "4 or more")

    def ops(self, maps: Sequence[Level], classes: int) -> Iterator[Op]:
        """What is computed of an image, from width and grid of each block. Kept elements are the
        heads' own; masks of training boxes are most of them."""
        seen = [maps[i] for i in looked_at(maps)]
        channels, head = self.channels, "head"
        if self.normalised:
            for i, (d, (h, w)) in enumerate(seen):
                yield norm(f"{head}.pyramid.norms.{i}", h * w, d)
        if len(seen) == 1:
            d, (h, w) = seen[0]
            cells, neck = h * w, f"{head}.pyramid.neck"
            yield _doubling(f"{neck}.fpn1.0", cells, d)
            yield norm(f"{neck}.fpn1.1", 4 * cells, d)
            yield Op("", "activation", 0, 0, 4 * cells * d)
            yield _doubling(f"{neck}.fpn1.3", 4 * cells, d)
            yield _doubling(f"{neck}.fpn2", cells, d)
            seen = [(d, (4 * h, 4 * w)), (d, (2 * h, 2 * w)), (d, (h, w)), (d, (h // 2, w // 2))]
        fpn, levels = f"{head}.pyramid.fpn", [h * w for _, (h, w) in seen]
        for i, ((d, _), cells) in enumerate(zip(seen, levels, strict=True)):
            inner = f"{fpn}.inner_blocks.{i}.0"
            yield conv(inner, cells, d, channels, 1, cells * d, True)
        for i, cells in enumerate(levels):
            layer = f"{fpn}.layer_blocks.{i}.0"
            yield conv(layer, cells, channels, channels, 3, cells * channels, True)
        h, w = seen[-1][1]
        every, ratios = sum(levels) + -(-h // 2) * -(-w // 2), len(self.ratios)
        yield conv(f"{head}.rpn.conv.0.0", every, channels, channels, 3, every * channels, True)
        yield conv(f"{head}.rpn.cls_logits", every, channels, ratios, 1, every * channels, True)
        yield conv(f"{head}.rpn.bbox_pred", every, channels, 4 * ratios, 1, 0, True)
        boxes, masks, one = self.samples, self.samples // 4, channels * BOX_CELLS**2
        cells = MASK_CELLS**2
        wide = boxes * one + masks * channels * cells + sum(levels) * channels
        # what boxes see, and the map that it is taken from
        yield Op("", "activation", 0, 0, 0, wide=wide)
        yield linear(f"{head}.box_head.fc6", boxes, one, self.hidden_dim)
        yield linear(f"{head}.box_head.fc7", boxes, self.hidden_dim, self.hidden_dim)
        yield linear(f"{head}.box_predictor.cls_score", boxes, self.hidden_dim, classes + 1)
        offsets = 4 * (classes + 1)
        box = linear(f"{head}.box_predictor.bbox_pred", boxes, self.hidden_dim, offsets)
        yield box._replace(kept=0)
        for i in range(self.mask_layers):
            layer, of = f"{head}.mask_head.{i}.0", masks * cells
            yield conv(layer, of, channels, channels, 3, of * channels, True)
        deconv = f"{head}.mask_predictor.conv5_mask"
        yield _doubling(deconv, masks * cells, channels)
        last, kept = f"{head}.mask_predictor.mask_fcn_logits", 4 * masks * cells
        yield conv(last, kept, channels, classes + 1, 1, kept * channels, True)
        yield Op("", "activation", 0, 0, 0, wide=kept * (classes + 1))


def looked_at(maps: Sequence[Level]) -> list[int]:
    """Which blocks' maps a head looks at, from width and grid of each: the last of each stage."""
    return [i for i in range(len(maps)) if maps[i] != (*maps, None)[i + 1]]


def _doubling(module: str, cells: int, dim: int) -> Op:
    """A transposed convolution that makes four cells of each."""
    made = Op(module, "conv", (4 * dim + 1) * dim, 4 * cells * dim * dim, cells * dim)
    return made._replace(shape=(4 * cells, 4 * dim, dim))
