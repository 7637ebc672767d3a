"""What is trained on, and how an image becomes an input. No torch here."""

from dataclasses import dataclass
from typing import Literal

from bigvit.recipe.depth import ImageSize

__all__ = [
    "Data",
    "Digits",
    "Images",
    "Mix",
    "RandAugment",
    "RandomResizedCrop",
    "Shift",
    "SimpleRandomCrop",
    "ThreeAugment",
]


@dataclass(frozen=True)
class Shift:
    """Move the image by up to `pixels` in each direction, filling with the background."""

    pixels: int  # largest shift, pixels


@dataclass(frozen=True)
class Digits:
    """scikit-learn's 1,797 scanned digits (8x8, gray, 10 classes), bundled with that package.

    Fixed split: every sixth image, counted from the first, is for testing (300 of them), the other
    1,497 are for training.
    """

    image_size: int  # pixels; the scans have 8
    augment: Shift | None
    repeats: int  # copies of an image in an epoch (repeated augmentation); 1 for none
    mean: tuple[float, ...]  # a channel's mean, of values in [0, 1]
    std: tuple[float, ...]  # a channel's standard deviation, of values in [0, 1]

    @property
    def train_images(self) -> int:
        return 1497

    @property
    def classes(self) -> int:
        return 10

    @property
    def channels(self) -> int:
        return 1

    @property
    def tested(self) -> bool:
        return True

    @property
    def mixing_group(self) -> int | None:
        return None


@dataclass(frozen=True)
class RandomResizedCrop:
    """A crop of random area and aspect ratio, resized to the input size."""

    scale: tuple[float, float]  # range of the crop's area, as a share of the image's
    ratio: tuple[float, float]  # range of width / height
    interpolation: Literal["bicubic", "bilinear"]  # of the resizing


@dataclass(frozen=True)
class SimpleRandomCrop:
    """Resized until it covers the input size (a square: its short side), reflected borders, a crop
    of that size at random (DeiT III, section 6.2.2)."""

    padding: int  # pixels of reflected border on every side
    interpolation: Literal["bicubic", "bilinear"]  # of the resizing


@dataclass(frozen=True)
class ThreeAugment:
    """Grayscale, solarize or Gaussian blur, then colour jitter (DeiT III, section 6.2.2)."""

    color_jitter: float  # strength of brightness, contrast and saturation


@dataclass(frozen=True)
class RandAugment:
    """RandAugment (arXiv:1909.13719) as timm's `rand-mM-nN-mstdS-inc1` does it."""

    operations: int  # applied one after the other to each image
    magnitude: float  # strength, 0 to 10
    magnitude_std: float  # deviation of the strength, drawn for each operation
    increasing: bool  # whether every operation grows in severity with the magnitude


@dataclass(frozen=True)
class Mix:
    """Mixup (arXiv:1710.09412) or CutMix (arXiv:1905.04899) within groups of the global batch."""

    mixup: float  # alpha of mixup's Beta distribution; 0 for none
    cutmix: float  # alpha of CutMix's Beta distribution; 0 for none
    switch: float  # probability of CutMix where both are on
    group: int  # consecutive samples that share one draw and are mixed with each other


@dataclass(frozen=True)
class Images:
    """Colour images of a data set on disk (`--data-root`), in any of the forms that bigvit reads.

    How many images and classes there are is part of the recipe, as the length of an epoch follows
    from it; a data set of another size is refused. Without test images nothing is evaluated.
    """

    dataset: str  # name of the data set
    train_images: int  # images of its training split
    test_images: int | None  # of its testing split; None: as many as there are; 0: it has none
    classes: int  # of its training split
    image_size: ImageSize  # pixels: the side of a square, or (height, width)
    crop: RandomResizedCrop | SimpleRandomCrop
    flip: float  # probability of a horizontal flip
    augment: ThreeAugment | RandAugment | None
    erasing: float  # probability of random erasing (arXiv:1708.04896)
    repeats: int  # copies of an image in an epoch (repeated augmentation); 1 for none
    mix: Mix | None
    mean: tuple[float, ...]  # a channel's mean, of values in [0, 1]
    std: tuple[float, ...]  # a channel's standard deviation, of values in [0, 1]
    test_crop_ratio: float  # test images are resized to size / ratio, then centre-cropped

    @property
    def channels(self) -> int:
        return 3

    @property
    def tested(self) -> bool:
        return self.test_images != 0

    @property
    def mixing_group(self) -> int | None:
        return self.mix.group if self.mix else None


Data = Digits | Images
