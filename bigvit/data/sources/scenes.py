"""Where images with more than one label each come from."""

from functools import lru_cache
from pathlib import Path

from bigvit.data.sources import segmentation, segmentation_saved
from bigvit.data.sources.coco import find_coco, open_coco
from bigvit.data.sources.hugging_face import find_saved
from bigvit.data.sources.segmentation import Labelled
from bigvit.data.sources.source import Source, Split
from bigvit.recipe import Detection, Segmentation

MAPPED = """the forms that are read:
  ROOT/images/training/*.jpg and ROOT/annotations/training/*.png (or train, or labels or masks), the
    same with validation (val, test), and objectInfo150.txt if it is there: ADE20K's
  ROOT/train/images/*.jpg and ROOT/train/masks/*.png (or labels, annotations), likewise
  a folder that `datasets`' DatasetDict.save_to_disk wrote, with columns image and annotation"""
LISTED = """the form that is read:
  ROOT/annotations/instances_train2017.json and instances_val2017.json, ROOT/train2017/ and
    ROOT/val2017/ (other years, or none): COCO's"""
SCENES = {Segmentation: MAPPED, Detection: LISTED}


def open_scenes(data: Segmentation | Detection, split: Split, root: Path) -> Source:
    """The images of a split, which lie at `root`.

    Raises:
        ValueError: they are not there, or cannot be read.
    """
    match data:
        case Segmentation():
            return _labelled(data, split, root)
        case Detection():
            if not find_coco(root):
                raise ValueError(f"--data-root {root}: no lists of objects are there; {LISTED}")
            try:
                return open_coco(root, split)
            except OSError as error:
                raise ValueError(f"--data-root {root} cannot be read: {error}") from None
            except ValueError as error:
                raise ValueError(f"--data-root {root}: {error}") from None


@lru_cache(maxsize=2)  # listed once: for the check before torch is imported, and for training
def _labelled(data: Segmentation, split: Split, root: Path) -> Labelled:
    """Images whose pixels have classes, some of whose maps were looked at."""
    try:
        if not root.is_dir():
            raise ValueError("there is no such folder")
        form = segmentation_saved.open_saved if find_saved(root) else segmentation.open_mapped
        source = form(data, split, root)
        segmentation.refuse_no_maps(source)
    except OSError as error:
        raise ValueError(f"--data-root {root} cannot be read: {error}") from None
    except ValueError as error:
        raise ValueError(f"--data-root {root}: {error}") from None
    return source
