"""What is trained on, and how an image becomes an input. No torch here."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from bigvit.recipe.bounds import Bound, Classes, CropRatio, Share, ShareBelow1, Side
from bigvit.recipe.depth import ImageSize

__all__ = [
    "Digits",
    "Images",
    "Mix",
    "MixToken",
    "RandAugment",
    "RandomResizedCrop",
    "Shift",
    "SimpleRandomCrop",
    "ThreeAugment",
    "ViewAugment",
    "ViewGroup",
    "Views",
]

Repeats = Annotated[int, Bound(1, 1000)]
Mean = Annotated[tuple[float, ...], Bound(-1000.0, 1000.0)]
Std = Annotated[tuple[float, ...], Bound(1e-6, 1000.0)]
Area = Annotated[tuple[float, float], Bound(1e-4, 1.0)]  # of an image of a megapixel, a box 10 wide
Alpha = Annotated[float, Bound(0.0, 1e6)]
TestImages = Annotated[int | None, Bound(0, 10**11)]
Group = Annotated[int, Bound(2, 2**20)]
DigitsLevel = Literal["digit", "parity"]
Level = Literal["own", "cifar100", "kingdom", "phylum", "class", "order", "family", "genus", "map"]
Deviation = Annotated[float, Bound(0.0, 100.0)]


@dataclass(frozen=True)
class ViewGroup:
    """Views of each image that are alike in size."""

    count: int  # of an image
    image_size: ImageSize  # pixels: the side of a square, or (height, width)


@dataclass(frozen=True)
class Shift:
    """Move the image by up to `pixels` in each direction, filling with the background."""

    pixels: Annotated[int, Bound(0, 2**16)]  # largest shift, pixels


@dataclass(frozen=True)
class Digits:
    """scikit-learn's 1,797 scanned digits (8x8, gray, 10 classes), bundled with that package.

    Fixed split: every sixth image, counted from the first, is for testing (300 of them), the other
    1,497 are for training.
    """

    image_size: Side[int]  # pixels; the scans have 8
    augment: Shift | None
    views: Annotated[int, Bound(0, 64)]  # further views of each image, shifted by themselves
    level: DigitsLevel  # what is told apart; parity: odd or even
    repeats: Repeats  # copies of an image in an epoch (repeated augmentation); 1 for none
    mean: Mean  # a channel's mean, of values in [0, 1]
    std: Std  # a channel's standard deviation, of values in [0, 1]

    @property
    def train_images(self) -> int:
        return 1497

    @property
    def classes(self) -> int:
        return 10 if self.level == "digit" else 2

    @property
    def channels(self) -> int:
        return 1

    @property
    def groups(self) -> tuple[ViewGroup, ...]:
        """Further views of each image, by group from 1; group 0 is the image itself."""
        return (ViewGroup(self.views, self.image_size),) if self.views else ()

    def group(self, number: int) -> "Digits":
        """The data as the images of a group are varied."""
        return replace(self, views=0)

    @property
    def tested(self) -> bool:
        return True

    @property
    def mixing_group(self) -> int | None:
        return None

    @property
    def augment_on_device(self) -> bool:
        return False


@dataclass(frozen=True)
class RandomResizedCrop:
    """A crop of random area and aspect ratio, resized to the input size."""

    scale: Area  # range of the crop's area, as a share of the image's
    ratio: Annotated[tuple[float, float], Bound(0.01, 100.0)]  # range of width / height
    interpolation: Literal["bicubic", "bilinear"]  # of the resizing


@dataclass(frozen=True)
class SimpleRandomCrop:
    """Resized until it covers the input size (a square: its short side), reflected borders, a crop
    of that size at random (DeiT III, section 6.2.2)."""

    padding: Annotated[int, Bound(0, 2**16)]  # pixels of reflected border on every side
    interpolation: Literal["bicubic", "bilinear"]  # of the resizing


@dataclass(frozen=True)
class ThreeAugment:
    """Grayscale, solarize or Gaussian blur, then colour jitter (DeiT III, section 6.2.2)."""

    color_jitter: Share[float]  # strength of brightness, contrast and saturation


@dataclass(frozen=True)
class RandAugment:
    """RandAugment (arXiv:1909.13719) as timm's `rand-mM-nN-mstdS-inc1` does it."""

    operations: Annotated[int, Bound(1, 100)]  # applied one after the other to each image
    magnitude: Annotated[float, Bound(0.0, 10.0)]  # strength, 0 to 10
    magnitude_std: Deviation  # deviation of the strength, drawn for each operation
    increasing: bool  # whether every operation grows in severity with the magnitude


@dataclass(frozen=True)
class ViewAugment:
    """What a view for self-supervised training goes through: colour jitter, grayscale, Gaussian
    blur and solarize, each with a probability (BYOL, arXiv:2006.07733, appendix B; DINO,
    arXiv:2104.14294)."""

    jitter: Share[float]  # probability of colour jitter
    brightness: Share[float]  # strength of its four parts, in an order drawn for each image
    contrast: Share[float]
    saturation: Share[float]
    hue: Annotated[float, Bound(0.0, 0.5)]
    grayscale: Share[float]  # probability
    blur: Share[float]  # probability
    solarize: Share[float]  # probability


@dataclass(frozen=True)
class Views:
    """Further views of each image, for objectives that compare views of one: read and decoded once,
    each cropped and varied by itself, never mixed."""

    count: Annotated[int, Bound(1, 64)]  # of an image
    image_size: ImageSize  # pixels: the side of a square, or (height, width)
    crop: RandomResizedCrop | SimpleRandomCrop
    flip: Share[float]  # probability of a horizontal flip
    augment: ThreeAugment | RandAugment | ViewAugment | None
    erasing: Share[float]  # probability of random erasing (arXiv:1708.04896)


@dataclass(frozen=True)
class Mix:
    """Mixup (arXiv:1710.09412) or CutMix (arXiv:1905.04899) within groups of the global batch."""

    mixup: Alpha  # alpha of mixup's Beta distribution; 0 for none
    cutmix: Alpha  # alpha of CutMix's Beta distribution; 0 for none
    switch: Share[float]  # probability of CutMix where both are on
    group: Group  # consecutive samples that share one draw and are mixed with each other


@dataclass(frozen=True)
class MixToken:
    """MixToken (arXiv:2104.10858) within groups of the global batch: once patches are embedded,
    those of a box, drawn as CutMix's on their grid, are another image's. Of ViT, CaiT and
    LVViT."""

    alpha: Alpha  # of the Beta distribution
    cell: Side[int]  # side of a patch, pixels: the model's
    group: Group  # consecutive samples that share one draw and are mixed with each other


@dataclass(frozen=True)
class Images:
    """Colour images of a data set on disk (`--data-root`), in any of the forms that bigvit reads.

    How many images and classes there are is part of the recipe, as the length of an epoch follows
    from it; a data set of another size is refused. Without test images nothing is evaluated.
    """

    dataset: str  # name of the data set
    train_images: Annotated[int, Bound(1, 10**11)]  # images of its training split
    test_images: TestImages  # of its testing split; None: as many as there are; 0: it has none
    classes: Classes[int]  # of its training split, at the level that is told apart
    image_size: ImageSize  # pixels: the side of a square, or (height, width)
    crop: RandomResizedCrop | SimpleRandomCrop
    flip: Share[float]  # probability of a horizontal flip
    augment: ThreeAugment | RandAugment | ViewAugment | None
    erasing: Share[float]  # probability of random erasing (arXiv:1708.04896)
    views: tuple[Views, ...]  # further views of each image, in groups; empty: none
    # at which classes are told apart: the data set's own, CIFAR-100's 20 coarse ones, a level of
    # iNaturalist's lists, or what the file says that `--classes-map` names
    level: Level
    repeats: Repeats  # copies of an image in an epoch (repeated augmentation); 1 for none
    mix: Mix | MixToken | None
    mean: Mean  # a channel's mean, of values in [0, 1]
    std: Std  # a channel's standard deviation, of values in [0, 1]
    # test images are resized to size / ratio, then centre-cropped
    test_crop_ratio: CropRatio[float]
    # of JPEGs to train on; scaled: as many times smaller (2, 4, 8) as leaves no less than the input
    # size, which is faster; at 160 pixels and below. Test images are always decoded exactly
    decode: Literal["exact", "scaled"]
    # share of the training split, chosen by a hash of the images' names, that is tested on, and not
    # trained on; 0: there is a testing split
    held_out: ShareBelow1[float]

    @property
    def channels(self) -> int:
        return 3

    @property
    def groups(self) -> tuple[ViewGroup, ...]:
        """Further views of each image, by group from 1; group 0 is the image itself."""
        return tuple(ViewGroup(each.count, each.image_size) for each in self.views)

    def group(self, number: int) -> "Images":
        """The data as the images of a group are varied."""
        if number == 0:
            return replace(self, views=())
        own = self.views[number - 1]
        return replace(
            self,
            image_size=own.image_size,
            crop=own.crop,
            flip=own.flip,
            augment=own.augment,
            erasing=own.erasing,
            views=(),
        )

    @property
    def tested(self) -> bool:
        return self.test_images != 0

    @property
    def mixing_group(self) -> int | None:
        return self.mix.group if self.mix else None

    @property
    def augment_on_device(self) -> bool:
        """Whether the device can do what follows cropping and mirroring: 3-Augment and jitter, if
        nothing is erased afterwards."""
        return isinstance(self.augment, ThreeAugment) and self.erasing == 0
