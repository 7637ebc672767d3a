"""A miniature of COCO: crops of scikit-learn's two photographs with ellipses of the other one
pasted into them, listed as COCO lists images, with gaps between the numbers of categories."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pictures import photographs
from PIL import Image, ImageDraw

from bigvit.data.sources import open_splits
from bigvit.data.sources.coco import CocoSource
from bigvit.recipe import Detection

CATEGORIES = [(18, "dog"), (1, "person"), (7, "train")]  # not in the order of their numbers
DATA = Detection(
    dataset="miniature",
    train_images=24,
    test_images=10,
    classes=3,
    image_size=96,
    shortest=(48, 56, 64),
    longest=96,
    flip=0.5,
    repeats=1,
    mean=(0.5, 0.5, 0.5),
    std=(0.25, 0.25, 0.25),
    test_shortest=64,
)
OBLONG = replace(DATA, image_size=(64, 96))  # two canvases


def opened(root: Path) -> tuple[CocoSource, CocoSource]:
    """Training and test images."""
    train, test = open_splits(DATA, root)
    assert isinstance(train, CocoSource) and isinstance(test, CocoSource)
    return train, test


def ellipse(box: tuple[float, ...], corners: int = 14) -> list[float]:
    """A polygon within left, top, width, height, with two decimals, as COCO's."""
    left, top, width, height = box
    angles = np.arange(corners) * 2 * np.pi / corners
    x = left + width / 2 * (1 + np.cos(angles))
    y = top + height / 2 * (1 + np.sin(angles))
    return np.stack([x, y], 1).reshape(-1).round(2).tolist()


def scene(number: int) -> tuple[Image.Image, list[dict[str, Any]]]:
    """An image, some of them upright, and its annotations."""
    random = np.random.default_rng(number)
    width, height = (80, 60) if number % 3 else (54, 72)
    photo, other = photographs()[0], photographs()[1]
    x, y = random.integers(0, 640 - width), random.integers(0, 427 - height)
    image = Image.fromarray(photo[y : y + height, x : x + width])
    found = list[dict[str, Any]]()
    for _ in range(int(random.integers(1, 4))):
        w, h = random.uniform(14, 40, 2)
        left, top = random.uniform(0, width - w), random.uniform(0, height - h)
        box = tuple(np.round([left, top, w, h], 2).tolist())
        corners, kind = ellipse(box), int(random.integers(0, 3))
        cut = Image.new("L", image.size)
        ImageDraw.Draw(cut).polygon([tuple(pair) for pair in np.reshape(corners, (-1, 2))], fill=1)
        x, y = random.integers(0, 640 - width), random.integers(0, 427 - height)
        pixels = other[y : y + height, x : x + width] + np.uint8(80 * kind)  # by kind, modulo 256
        image.paste(Image.fromarray(pixels), mask=cut.point([0, 255] * 128))
        found.append(
            {
                "segmentation": [corners],
                "area": round(box[2] * box[3] * np.pi / 4, 2),
                "iscrowd": 0,
                "bbox": list(box),
                "category_id": sorted(CATEGORIES)[kind][0],
            }
        )
    return image, found


def runs(mask: NDArray[np.bool_]) -> list[int]:
    """Lengths of runs down the columns, the first of what is not there: COCO's for crowds."""
    flat = np.concatenate([[False], mask.reshape(-1, order="F"), [not mask[-1, -1]]])
    lengths = np.diff(np.concatenate([[0], np.flatnonzero(flat[1:] != flat[:-1])]))
    return lengths.tolist()


def crowd(size: tuple[int, int]) -> dict[str, Any]:
    """In the middle of an image of (width, height)."""
    width, height = size
    mask = np.zeros((height, width), np.bool_)
    mask[10:30, 12:40] = True
    return {
        "segmentation": {"counts": runs(mask), "size": [height, width]},
        "area": 560,
        "iscrowd": 1,
        "bbox": [12, 10, 28, 20],
        "category_id": 1,
    }


def write(root: Path, split: str, numbers: range, crowds: bool = True) -> dict[str, Any]:
    """Images and list of a split; what the list says. The first image has a crowd, too; the second
    nothing but one; the third nothing."""
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / f"{split}2017").mkdir()
    images, annotations = list[dict[str, Any]](), list[dict[str, Any]]()
    for place, number in enumerate(numbers):
        image, found = scene(number)
        name, id = f"{number:012}.jpg", 1000 - number  # not in the order of files
        image.save(root / f"{split}2017" / name, quality=95)
        if crowds and place < 3:
            found = [[*found, crowd(image.size)], [crowd(image.size)], []][place]
        images.append(
            {
                "license": 3,
                "file_name": name,
                "coco_url": "",
                "height": image.height,
                "width": image.width,
                "date_captured": "2013-11-14 17:02:52",
                "id": id,
            }
        )
        annotations += [{**each, "image_id": id} for each in found]
    annotations = [{**each, "id": 7000 + 3 * i} for i, each in enumerate(annotations)]
    listed = {
        "info": {"description": "COCO 2017 Dataset", "year": 2017},
        "licenses": [{"url": "", "id": 3, "name": "Attribution"}],
        "images": images,
        "annotations": annotations,
        "categories": [
            {"supercategory": "thing", "id": id, "name": name} for id, name in CATEGORIES
        ],
    }
    path = root / "annotations" / f"instances_{split}2017.json"
    path.write_text(json.dumps(listed))
    return listed


def written(root: Path) -> Path:
    """A root with 26 images to train on and 10 to test on."""
    write(root, "train", range(26))
    write(root, "val", range(100, 110))
    return root
