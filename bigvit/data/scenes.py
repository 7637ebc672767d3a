"""Images of which more than one label is known: what is drawn once is done to image, labels, masks
and boxes alike."""

from typing import cast

import numpy as np
from numpy.typing import NDArray

from bigvit.data import pixel_labels, scene_objects
from bigvit.data.sample import Sample, TestIndex, TrainIndex
from bigvit.data.sources import Source
from bigvit.data.sources.coco import CocoSource
from bigvit.recipe import Data, Detection, Segmentation


def standing_of(source: Source, data: Data) -> NDArray[np.bool_] | None:
    """Which images have their canvas turned (images,); None where there is one canvas."""
    turned = isinstance(data, Detection) and data.turns
    return cast(CocoSource, source).standing if turned else None


def train_sample(
    source: Source, data: Segmentation | Detection, seed: int, place: TrainIndex
) -> Sample:
    """The image of a place with what is known of it, varied as drawn for it.

    Raises:
        BadImage: it, or what is known of it, cannot be read.
    """
    match data:
        case Segmentation():
            return pixel_labels.train_sample(source, data, seed, place)
        case Detection():
            return scene_objects.train_sample(cast(CocoSource, source), data, seed, place)


def test_sample(source: Source, data: Segmentation | Detection, place: TestIndex) -> Sample:
    """The same, nothing of it at random.

    Raises:
        BadImage: it, or what is known of it, cannot be read.
    """
    match data:
        case Segmentation():
            return pixel_labels.test_sample(source, data, place)
        case Detection():
            return scene_objects.test_sample(cast(CocoSource, source), data, place)
