"""Where images with more than one label each come from."""

from pathlib import Path

from bigvit.data.sources import segmentation
from bigvit.data.sources.source import Source, Split
from bigvit.recipe import Detection, Segmentation

MAPPED = """the forms that are read:
  ROOT/images/training/*.jpg and ROOT/annotations/training/*.png (or train, or labels or masks), the
    same with validation (val, test), and objectInfo150.txt if it is there: ADE20K's
  ROOT/train/images/*.jpg and ROOT/train/masks/*.png (or labels, annotations), likewise
  a folder that `datasets`' DatasetDict.save_to_disk wrote, with columns image and annotation"""
SCENES = MAPPED


def open_scenes(data: Segmentation | Detection, split: Split, root: Path) -> Source:
    """The images of a split, which lie at `root`.

    Raises:
        ValueError: they are not there, or cannot be read.
    """
    match data:
        case Segmentation():
            return segmentation.open_labelled(data, split, root)
        case Detection():
            raise NotImplementedError
