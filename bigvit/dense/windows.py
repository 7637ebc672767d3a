"""Predictions of every pixel of images of any size, through windows of one size.

Shapes: B windows of h x w pixels at once, K classes, an image of H x W pixels as it is seen, whose
map may have another size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from bigvit.data.pixel_labels import WholeScene
from bigvit.data.prepare import Normalise
from bigvit.recipe import Segmentation, sides
from bigvit.task import PREDICTION

Predict = Callable[[Tensor], Mapping[str, Tensor]]
"""Normalised images (B, 3, h, w) -> what is said of them, by name."""


class Corner(NamedTuple):
    """Of a window of an image."""

    view: "View"
    top: int
    left: int
    last: bool  # of its view


@dataclass
class View:
    """An image as it is seen, and what was predicted of it so far."""

    scene: WholeScene
    image: Tensor  # (3, H, W) normalised
    flipped: bool
    last: bool  # of its scene
    logits: Tensor | None = None  # (K, H, W) summed over windows
    counts: Tensor | None = None  # (H, W) of windows

    def add(self, logits: Tensor, top: int, left: int) -> None:
        """Logits (K, h, w) of a window; what lies beyond the image is left out."""
        height, width = self.image.shape[1:]
        part = logits[:, : height - top, : width - left].float()
        if self.logits is None or self.counts is None:
            self.logits = part.new_zeros(len(part), height, width)
            self.counts = part.new_zeros(height, width)
        down, across = slice(top, top + part.shape[1]), slice(left, left + part.shape[2])
        self.logits[:, down, across] += part
        self.counts[down, across] += 1

    def whole(self) -> Tensor:
        """The mean logits of each pixel of the map (K, H, W)."""
        assert self.logits is not None and self.counts is not None
        mean = self.logits / self.counts
        mean = mean.flip(2) if self.flipped else mean
        size = self.scene.labels.shape
        return interpolate(mean[None], size, mode="bilinear", align_corners=False)[0]


def starts(length: int, window: int, stride: int) -> list[int]:
    """Where windows begin on a line: one every stride, the last one at its end."""
    count = -(-max(0, length - window) // stride) + 1
    return [min(i * stride, max(0, length - window)) for i in range(count)]


class Seeing:
    """Scenes through windows, in batches of one size."""

    def __init__(
        self, scenes: Sequence[WholeScene], data: Segmentation, flips: bool, normalise: Normalise
    ) -> None:
        """Args: flips: see each image mirrored, too."""
        self.scenes, self.data, self.flips = scenes, data, flips
        self.normalise = normalise

    def batches(self, size: int) -> int:
        """How many batches they take."""
        down, across = sides(self.data.image_size)
        stride = self.data.stride
        windows = sum(
            len(starts(image.shape[1], down, stride)) * len(starts(image.shape[2], across, stride))
            for scene in self.scenes
            for image in scene.images
        )
        return -(-windows * (1 + self.flips) // size)

    def predicted(
        self, predict: Predict, size: int, batches: int
    ) -> Iterator[tuple[WholeScene, Tensor]]:
        """Each scene, and the classes (H, W) that are predicted of its pixels.

        The logits of several views are made probabilities, which are averaged.

        Args:
            size: of a batch; places that no window is left for are 0.
            batches: to predict, as many as they take, or more.
        """
        corners, found = self._corners(), None
        for _ in range(batches):
            here = list(islice(corners, size))
            said = predict(self._windows(here, size))
            logits = self._in_full(said[PREDICTION]) if here else ()
            for corner, own in zip(here, logits, strict=False):
                view = corner.view
                view.add(own, corner.top, corner.left)
                if not corner.last:
                    continue
                whole = view.whole()
                view.logits = view.counts = None
                if found is not None or not view.last:
                    whole = whole.softmax(dim=0)
                    found = whole if found is None else found + whole
                if view.last:
                    yield view.scene, (whole if found is None else found).argmax(dim=0)
                    found = None

    def _corners(self) -> Iterator[Corner]:
        down, across = sides(self.data.image_size)
        for scene in self.scenes:
            for scale, pixels in enumerate(scene.images):
                image = self.normalise(torch.from_numpy(pixels)[None])[0]
                for flipped in (False, True)[: 1 + self.flips]:
                    last = scale == len(scene.images) - 1 and flipped == self.flips
                    view = View(scene, image.flip(2) if flipped else image, flipped, last)
                    tops = starts(image.shape[1], down, self.data.stride)
                    lefts = starts(image.shape[2], across, self.data.stride)
                    for top in tops:
                        for left in lefts:
                            end = (top, left) == (tops[-1], lefts[-1])
                            yield Corner(view, top, left, end)

    def _windows(self, corners: Sequence[Corner], size: int) -> Tensor:
        """(B, 3, h, w), 0 beyond images."""
        down, across = sides(self.data.image_size)
        found = torch.zeros(size, 3, down, across, device=self.normalise.mean.device)
        for window, (view, top, left, _) in zip(found, corners, strict=False):
            part = view.image[:, top : top + down, left : left + across]
            window[:, : part.shape[1], : part.shape[2]] = part
        return found

    def _in_full(self, logits: Tensor) -> Tensor:
        """Logits (B, K, h, w) at the size of windows."""
        size = sides(self.data.image_size)
        if logits.shape[2:] == size:
            return logits
        return interpolate(logits.float(), size, mode="bilinear", align_corners=False)
