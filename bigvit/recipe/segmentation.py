"""A class for each pixel: data as ADE20K's, and UperNet (arXiv:1807.10221) on a trunk's maps. No
torch here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from bigvit.recipe.bounds import Bound, Classes, Share, ShareBelow1, Side, Weight, Width
from bigvit.recipe.data import Mean, Repeats, Std
from bigvit.recipe.depth import ImageSize
from bigvit.recipe.models.ops import Op
from bigvit.recipe.scene import Count, Factors, Scene, TestCount

__all__ = ["Distortion", "Segmentation", "UperNet"]


@dataclass(frozen=True)
class Distortion:
    """Brightness, contrast, saturation and hue, each with a probability of 1/2, contrast first or
    last (SSD, arXiv:1512.02325, as mmsegmentation's PhotoMetricDistortion has it)."""

    brightness: Annotated[float, Bound(0.0, 255.0)]  # largest that is added, of 255
    contrast: Factors  # range of the factor
    saturation: Factors  # range of the factor
    hue: Annotated[float, Bound(0.0, 180.0)]  # largest shift, of 180


@dataclass(frozen=True)
class Segmentation(Scene):
    """Colour images with a map of classes each (`--data-root`).

    An image is resized until it fits `longest` x `shortest`, times a factor that is drawn, cropped
    to `image_size` (what is missing is filled: the image with 0 after normalising, the map with
    "not told"), flipped, and distorted.
    """

    dataset: str  # name of the data set
    train_images: Count  # images of its training split
    test_images: TestCount  # of its testing split; None: as many as there are; 0: it has none
    classes: Classes[int]  # that pixels have
    zero: Literal["class", "not told"]  # what a map's 0 means; not told: class c is written c + 1
    image_size: ImageSize  # pixels: the side of a square crop, or (height, width)
    longest: Side[int]  # of an image, pixels, at a factor of 1
    shortest: Side[int]  # likewise
    factor: Factors  # range of what both are multiplied by
    # a crop is drawn again, ten times at most, while one class has more of it than this
    most_of_one: Share[float]
    flip: Share[float]  # probability of a horizontal flip
    distortion: Distortion | None
    repeats: Repeats  # copies of an image in an epoch (repeated augmentation); 1 for none
    mean: Mean  # a channel's mean, of values in [0, 1]
    std: Std  # a channel's standard deviation, of values in [0, 1]
    # between windows of `image_size` that a test image is seen through, pixels; their logits are
    # averaged where they overlap
    stride: Side[int]


@dataclass(frozen=True)
class UperNet:
    """Cross-entropy of each pixel's logits with its class, summed, and divided by all pixels, also
    those whose class is not told: so it does not depend on how a batch is cut.

    Logits are UperNet's: a pyramid of features, of whose coarsest map averages over `scales` x
    `scales` cells are taken too. Of a trunk of one stride s the maps are brought to s / 4, s / 2, s
    and 2 s first."""

    weight: Weight  # factor of this loss in the sum
    normalised: bool  # whether each map goes through a LayerNorm of its own first (Swin's)
    channels: Width[int]  # of the pyramid
    scales: Annotated[tuple[int, ...], Bound(1, 64)]  # cells across, of each average
    auxiliary: Weight  # of the loss of a second head, on the last map but one, beside the first's 1
    auxiliary_channels: Width[int]
    dropout: ShareBelow1[float]  # probability that a channel is dropped before the last layer
    # batch: of all ranks' micro-batches together, so a run depends on its accumulation; group: 32
    # groups of channels of each image
    norm: Literal["batch", "group"]

    def ops(self, maps: Sequence[tuple[int, tuple[int, int]]], classes: int) -> Iterator[Op]:
        """What is computed of an image, from width and grid of each block."""
        raise NotImplementedError
