"""A class for each pixel: data as ADE20K's, and UperNet (arXiv:1807.10221) on a trunk's maps. No
torch here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Annotated, Literal

from bigvit.recipe.bounds import Bound, Classes, Share, ShareBelow1, Side, Weight, Width, allow
from bigvit.recipe.data import Mean, Repeats, Std
from bigvit.recipe.depth import ImageSize, sides
from bigvit.recipe.models.ops import Op, batch_norm, conv, norm
from bigvit.recipe.scene import Count, Factors, Scene, TestCount

__all__ = ["Distortion", "Segmentation", "UperNet"]

Level = tuple[int, tuple[int, int]]
"""Width and grid of a map."""

GROUPS = 32
"""Of channels, where each image's are normalised by groups."""


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
    # a crop is drawn again, ten times at most, while one class has this share or more of its told
    # pixels, or all of them; 1: never
    most_of_one: Share[float]
    flip: Share[float]  # probability of a horizontal flip
    distortion: Distortion | None
    repeats: Repeats  # copies of an image in an epoch (repeated augmentation); 1 for none
    mean: Mean  # a channel's mean, of values in [0, 1]
    std: Std  # a channel's standard deviation, of values in [0, 1]
    # between windows of `image_size` that a test image is seen through, pixels; their logits are
    # averaged where they overlap
    stride: Side[int]

    @property
    def windows(self) -> int:
        """How many a test image is seen through, if it is a photograph of 4 x 3."""
        seen = self.shortest, min(self.longest, 4 * self.shortest // 3)
        each = zip(seen, sides(self.image_size), strict=True)
        return prod(1 + -(-max(0, length - window) // self.stride) for length, window in each)


@dataclass(frozen=True)
class UperNet:
    """Cross-entropy of each pixel's logits with its class, summed, and divided by all pixels, also
    those whose class is not told: so it does not depend on how a batch is cut.

    Logits are UperNet's: a pyramid of features, of whose coarsest map averages over `scales` x
    `scales` cells are taken too. Of a trunk of one stride s the maps are brought to s / 4, s / 2, s
    and 2 s first, as BEiT's and XCiT's code does."""

    weight: Weight  # factor of this loss in the sum
    # of the trunk, from 0, that the pyramid's maps are of, finest first; of a trunk of one stride
    # four, which may be the same
    blocks: Annotated[tuple[int, ...], Bound(0, 10_000)]
    normalised: bool  # whether each map goes through a LayerNorm of its own first (Swin's)
    channels: Width[int]  # of the pyramid
    scales: Annotated[tuple[int, ...], Bound(1, 64)]  # cells across, of each average
    auxiliary: Weight  # of the loss of a second head, on the last map but one, beside the first's 1
    auxiliary_channels: Width[int]
    dropout: ShareBelow1[float]  # probability that a channel is dropped before the last layer
    # batch: of all ranks' micro-batches together, so a run depends on its accumulation; group: 32
    # groups of channels of each image
    norm: Literal["batch", "group"]

    def uniform(self, maps: Sequence[Level]) -> bool:
        """Whether maps, of the pyramid, all have one stride, so that others are made of them."""
        return len({grid for _, grid in maps}) == 1

    def levels(self, maps: Sequence[Level]) -> list[Level]:
        """Width and grid of the pyramid's maps, of those of all blocks."""
        return [maps[block] for block in self.blocks]

    def check(self, path: str, trunk: Sequence[Level], pixels: tuple[int, int]) -> None:
        """Refuse what cannot be computed.

        Args:
            trunk: width and grid of each of its blocks.
            pixels: sides of an image.

        Raises:
            ValueError: names the field, the value given and what is allowed.
        """
        last, given = len(trunk) - 1, self.blocks
        there = len(given) >= 2 and max(given) <= last
        allow(f"{path}.blocks", given, there, f"two numbers or more from 0 to {last}, blocks")
        maps = self.levels(trunk)
        if self.uniform(maps):
            allowed = "four numbers, as the blocks are of one stride"
            allow(f"{path}.blocks", given, len(given) == 4, allowed)
            if min(grid := maps[0][1]) < 2:
                raise ValueError(
                    f"data.image_size: {pixels[0]} x {pixels[1]} is not allowed; it gives "
                    f"{grid[0]} x {grid[1]} features, whose number UperNet halves: choose larger "
                    "images"
                )
        else:
            falling = all(b < a for a, b in pairwise(prod(grid) for _, grid in maps))
            allowed = "blocks of stages that follow each other, each of a coarser grid"
            allow(f"{path}.blocks", given, falling, allowed)
        allow(f"{path}.scales", self.scales, len(self.scales) > 0, "one number or more")
        if self.norm == "group":
            widths = {"channels": self.channels}
            widths |= {"auxiliary_channels": self.auxiliary_channels} if self.auxiliary else {}
            several = 3 * GROUPS
            for name, width in widths.items():
                fits, allowed = width % GROUPS == 0, f"a multiple of {GROUPS}, the groups of norm"
                allow(f"{path}.{name}", width, fits, allowed)
            single = 1 in self.scales and self.channels < several
            allowed = f"{several} or more: of two values a norm leaves 1 and -1 (scales 1)"
            allow(f"{path}.channels", self.channels, not single, allowed)
            width, fits = maps[0][0], not self.uniform(maps) or maps[0][0] % GROUPS == 0
            allow(f"{path}.norm", self.norm, fits, f"batch where the trunk is {width} wide")

    def ops(self, maps: Sequence[Level], classes: int, pixels: int) -> Iterator[Op]:
        """What is computed of an image, in order.

        Args:
            maps: width and grid of the blocks of the pyramid, finest first.
            pixels: of an image.
        """
        cells = [prod(grid) for _, grid in maps]
        widths = [width for width, _ in maps]
        distinct = dict(zip(self.blocks, zip(cells, widths, strict=True), strict=True))
        for i, block in enumerate(sorted(distinct)):
            count, width = distinct[block]
            if self.normalised:
                yield norm(f"norms.{i}", count, width)
            yield Op("", "activation", 0, 0, count * width)  # as all that follows reads it
        if self.uniform(maps):
            d, (h, w), own = widths[0], maps[0][1], cells[0]
            yield self._doubled("neck.fpn1.0", own, d)
            yield self._norm("neck.fpn1.1", 4 * own, d)
            # what it reads, and what it makes
            yield Op("neck.fpn1.2", "activation", 0, 0, 8 * own * d)
            yield self._doubled("neck.fpn1.3", 4 * own, d)
            yield self._doubled("neck.fpn2.0", own, d)
            cells = [16 * own, 4 * own, own, (h // 2) * (w // 2)]
            made = (cells[0] + cells[1] + cells[3]) * d
            yield Op(
                "neck", "activation", 0, 0, made, wide=2 * cells[3] * d
            )  # and indices, 8 bytes
        finest, c, last = cells[0], self.channels, len(maps) - 1
        for i, scale in enumerate(self.scales):
            name, kept = f"decode_head.psp_modules.{i}.1", scale**2 * widths[-1]
            yield from self._conv(name, scale**2, widths[-1], c, 1, kept)
        read = widths[-1] + len(self.scales) * c
        head = "decode_head"
        yield from self._conv(f"{head}.bottleneck", cells[-1], read, c, 3, cells[-1] * read)
        for i in range(last):
            yield from self._conv(f"{head}.lateral_convs.{i}", cells[i], widths[i], c, 1, 0)
        for i in range(last):
            yield from self._conv(f"{head}.fpn_convs.{i}", cells[i], c, c, 3, cells[i] * c)
        read = len(maps) * c
        yield from self._conv(f"{head}.fpn_bottleneck", finest, read, c, 3, finest * read)
        yield from self._logits(head, finest, c, classes, pixels)
        if self.auxiliary:
            head, c, before = "auxiliary_head", self.auxiliary_channels, cells[-2]
            yield from self._conv(f"{head}.convs.0", before, widths[-2], c, 3, 0)
            yield from self._logits(head, before, c, classes, pixels)

    def _norm(self, module: str, cells: int, c: int) -> Op:
        if self.norm == "batch":
            return batch_norm(module, cells, c)
        return Op(module, "norm", 2 * c, 0, 0, wide=cells * c + 2 * GROUPS)

    def _doubled(self, module: str, cells: int, d: int) -> Op:
        """A transposed convolution, two cells of one each way."""
        made = (4 * cells, 4 * d, d)
        return Op(module, "conv", 4 * d * d + d, 4 * cells * d * d, 0, shape=made)

    def _conv(
        self, module: str, cells: int, inputs: int, outputs: int, kernel: int, kept: int
    ) -> Iterator[Op]:
        yield conv(f"{module}.conv", cells, inputs, outputs, kernel, kept)
        yield self._norm(f"{module}.{'bn' if self.norm == 'batch' else 'gn'}", cells, outputs)
        yield Op(module, "activation", 0, 0, cells * outputs)

    def _logits(self, head: str, cells: int, c: int, classes: int, pixels: int) -> Iterator[Op]:
        """The last layer, and the logarithms of probabilities of every pixel, with its class."""
        kept = cells * c if self.dropout else 0  # what is left of the channels
        yield conv(f"{head}.conv_seg", cells, c, classes, 1, kept, bias=True)
        yield Op(head, "activation", 0, 0, 0, wide=pixels * (classes + 2))
