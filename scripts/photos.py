"""Cut the photographs that scikit-image and scikit-learn ship into a small data set of JPEGs, in
class folders: `python scripts/photos.py FOLDER`. A class is a photograph: this exercises decoding,
augmentation and resolution on real images; it is no object recognition.

Training images come from the left 60 % of a photograph, test images from the right 35 %: they share
no pixel.
"""

import argparse
from pathlib import Path

import numpy as np
import skimage.data
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images

from bigvit import keyed_random

TRAIN_EACH, TEST_EACH = 50, 20
SIDES = 80, 140  # pixels of a cut


def photographs() -> dict[str, NDArray[np.uint8]]:
    """Twelve photographs (H, W, 3), by name; all of them lie in the two packages."""
    china, flower = load_sample_images().images
    names = ("astronaut", "camera", "cat", "coffee", "coins", "grass", "gravel")
    more = ("hubble_deep_field", "immunohistochemistry", "rocket")
    found = {name: getattr(skimage.data, name)() for name in (*names, *more)}
    found |= {"china": china, "flower": flower}
    return {name: np.stack([p] * 3, -1) if p.ndim == 2 else p for name, p in found.items()}


def cut(photograph: NDArray[np.uint8], split: str, name: str, i: int) -> Image.Image:
    """The i-th image of a photograph's part for a split."""
    height, width, _ = photograph.shape
    first, last = (0, int(0.6 * width)) if split == "train" else (int(0.65 * width), width)
    u, v, w = keyed_random.uniform(3, "photos", split, name, i)
    side = min(SIDES[0] + int(u * (SIDES[1] - SIDES[0])), last - first, height)
    top, left = int(v * (height - side + 1)), first + int(w * (last - first - side + 1))
    return Image.fromarray(photograph[top : top + side, left : left + side])


def main(folder: Path) -> None:
    for name, photograph in photographs().items():
        for split, count in (("train", TRAIN_EACH), ("val", TEST_EACH)):
            target = folder / split / name
            target.mkdir(parents=True)
            for i in range(count):
                cut(photograph, split, name, i).save(target / f"{i:04d}.jpg", quality=90)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder to make")
    main(parser.parse_args().folder)
