"""Where images with more than one label each come from."""

from pathlib import Path

from bigvit.data.sources.source import Source, Split
from bigvit.recipe import Detection, Segmentation

SCENES = """the forms that are read:"""


def open_scenes(data: Segmentation | Detection, split: Split, root: Path) -> Source:
    """The images of a split, which lie at `root`.

    Raises:
        ValueError: they are not there, or cannot be read.
    """
    match data:
        case Segmentation():
            raise NotImplementedError
        case Detection():
            raise NotImplementedError
