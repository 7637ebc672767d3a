"""What data sets of which more than one label an image is known have in common. No torch here."""

from typing import Annotated, Any, Literal

from bigvit.recipe.bounds import Bound
from bigvit.recipe.data import TestImages, ViewGroup

__all__ = ["Scene"]

Count = Annotated[int, Bound(1, 10**11)]
Factor = Annotated[float, Bound(0.01, 100.0)]
Factors = Annotated[tuple[float, float], Bound(0.01, 100.0)]
TestCount = TestImages

UNTOLD = 255
"""The class of pixels of which none is told."""
MOST_CLASSES = UNTOLD - 1
"""Of pixels: their numbers, those of a map where 0 is no class, and UNTOLD fit into a byte."""


class Scene:
    """What such data have none of: further views, levels of classes, mixing."""

    test_images: int | None
    views = ()
    level: Literal["own"] = "own"
    held_out = 0.0
    mix = None

    @property
    def channels(self) -> int:
        return 3

    @property
    def windows(self) -> int:
        """How many images of `image_size` are predicted of a test image."""
        return 1

    @property
    def groups(self) -> tuple[ViewGroup, ...]:
        return ()

    def group(self, number: int) -> Any:
        return self

    @property
    def tested(self) -> bool:
        return self.test_images != 0

    @property
    def mixing_group(self) -> int | None:
        return None

    @property
    def augment_on_device(self) -> bool:
        return False
