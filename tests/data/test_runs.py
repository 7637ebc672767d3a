"""Packed run lengths are pycocotools', and lists of masks that cannot be are refused when read."""

from pathlib import Path
from typing import Any

import cocos
import numpy as np
import pytest
from pycocotools import mask as coder
from test_coco import change, first, root

from bigvit.data.sources.coco import FAR
from bigvit.data.sources.runs import cover, unpacked

assert root  # a fixture


def packed(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


@pytest.mark.parametrize("seed", range(20))
def test_runs_are_pycocotools(seed: int) -> None:
    random = np.random.default_rng(seed)
    height, width = random.integers(1, 400, 2)
    filled = random.random((height, width)) < random.choice([0, 0.001, 0.5, 0.999, 1])
    text: Any = coder.encode(np.asfortranarray(filled.astype(np.uint8)))["counts"]
    walk = np.concatenate([[False], filled.T.ravel()])
    ends = np.concatenate([[0], np.flatnonzero(np.diff(walk)), [filled.size]])
    wanted = np.diff(ends)
    found = unpacked(np.frombuffer(text, np.uint8))
    assert found.tolist() == wanted.tolist()
    assert cover(np.frombuffer(text, np.uint8).astype(float), True, filled.size)
    assert not cover(np.frombuffer(text, np.uint8).astype(float), True, filled.size + 1)


@pytest.mark.parametrize("text", ["", "P", "\x00", "~~~~", "`" * 40 + "0"])
def test_what_is_no_text_of_runs_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no text of packed run lengths"):
        unpacked(packed(text))


def mask(listed, counts) -> None:
    image = listed["images"][0]
    number = image["id"]
    one = next(each for each in listed["annotations"] if each["image_id"] == number)
    pixels = image["height"] * image["width"]
    counts = counts(pixels) if callable(counts) else counts
    one["segmentation"] = {"size": [image["height"], image["width"]], "counts": counts}


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda x: mask(x, ""), "is not of all its image"),
        (lambda x: mask(x, "zzzz~~~~"), "is not of all its image"),
        (lambda x: mask(x, "52"), "is not of all its image"),
        (lambda x: mask(x, lambda pixels: [pixels - 1]), "is not of all its image"),
        (lambda x: mask(x, lambda pixels: [-5, pixels + 5]), "is not of all its image"),
        (lambda x: mask(x, lambda pixels: [0.5, pixels - 0.5]), "is not of all its image"),
        (lambda x: first(x, segmentation=[[0, 0, 1e9, 0, 1e9, 1e9]]), f"{FAR:,} pixels away"),
        (lambda x: first(x, image_id=2**70), "is damaged"),
        (lambda x: first(x, area=float("nan")), "an area that is not of finite numbers"),
        (lambda x: x["annotations"][0].pop("category_id"), "is damaged"),
        (lambda x: x["images"][0].update(id=2**70), "is damaged"),
        (lambda x: x["images"][0].update(height=float("inf")), "is damaged"),
        (lambda x: x["images"][0].update(height=1e30), "is damaged"),
        (lambda x: x["images"][0].update(height=0), "a side that is not 1 to"),
        (
            lambda x: x["images"][1].update(file_name=x["images"][0]["file_name"]),
            "images that have the same file name",
        ),
    ],
)
def test_masks_and_numbers_that_cannot_be_are_refused(
    root: Path, split: str, what, said: str
) -> None:
    change(root, what, split)
    with pytest.raises(ValueError, match="--data-root") as error:
        cocos.opened(root)
    assert said in str(error.value) and "\n" not in str(error.value)
