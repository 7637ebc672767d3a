"""Boxes and masks of objects: data as COCO's, and Mask R-CNN (arXiv:1703.06870) on a trunk's maps.
No torch here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from bigvit.recipe.bounds import Bound, Classes, Share, Side, Weight, Width
from bigvit.recipe.data import Mean, Repeats, Std
from bigvit.recipe.depth import ImageSize
from bigvit.recipe.models.ops import Op
from bigvit.recipe.scene import Count, Scene, TestCount

__all__ = ["Detection", "MaskRCNN"]

Sides = Annotated[tuple[int, ...], Bound(1, 2**16)]


@dataclass(frozen=True)
class Detection(Scene):
    """Colour images with boxes and masks of the objects in them (`--data-root`).

    An image is resized to a shorter side that is drawn, unless its longer one would be above
    `longest`, flipped, and laid into the upper left corner of a canvas of `image_size`, whose rest
    is 0 after normalising: so what becomes of it does not depend on the images beside it.
    """

    dataset: str  # name of the data set
    train_images: Count  # images of its training split, those without objects left out
    test_images: TestCount  # of its testing split; None: as many as there are; 0: it has none
    classes: Classes[int]  # of objects
    image_size: ImageSize  # pixels, of the canvas: the side of a square, or (height, width)
    shortest: Sides  # one of which is drawn, pixels
    longest: Side[int]  # pixels
    flip: Share[float]  # probability of a horizontal flip
    repeats: Repeats  # copies of an image in an epoch (repeated augmentation); 1 for none
    mean: Mean  # a channel's mean, of values in [0, 1]
    std: Std  # a channel's standard deviation, of values in [0, 1]
    test_shortest: Side[int]  # that a test image is resized to, pixels


@dataclass(frozen=True)
class MaskRCNN:
    """The five losses of Mask R-CNN, each image's own, averaged over images: so they do not depend
    on how a batch is cut."""

    weight: Weight  # factor of this loss in the sum
    normalised: bool  # whether each map goes through a LayerNorm of its own first (Swin's)
    channels: Width[int]  # of the pyramid

    def ops(self, maps: Sequence[tuple[int, tuple[int, int]]], classes: int) -> Iterator[Op]:
        """What is computed of an image, from width and grid of each block."""
        raise NotImplementedError
