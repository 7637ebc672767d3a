"""Scenes that are made: exact labels, photographs apart, and read as ADE20K's."""

from pathlib import Path
from typing import cast

import numpy as np
import pytest
from PIL import Image

from benchmarks import scenes, scenes_recipes
from bigvit.data.check import check_data
from bigvit.data.sources import open_source
from bigvit.data.sources.segmentation import Labelled
from bigvit.recipe import Run
from bigvit.recipe.check import check_recipe
from bigvit.recipes.detection import scenes_mask_rcnn
from bigvit.recipes.segmentation import scenes_swin_64, scenes_vit_64


def test_labels_are_what_was_pasted() -> None:
    seen, several = np.zeros(len(scenes.CLASSES), int), 0
    for number in range(60):
        made = scenes.make("train", number)
        assert made.pixels.shape == (*made.labels.shape, 3)
        assert all(72 <= side <= 120 for side in made.labels.shape)
        whole = np.zeros_like(made.labels)
        for mask, number_of in zip(made.masks, made.classes, strict=True):
            assert mask.any() and not whole[mask].any(), "shapes do not overlap as they are seen"
            whole[mask] = number_of
        assert np.array_equal(whole, made.labels)
        seen += np.bincount(made.labels.ravel(), minlength=len(scenes.CLASSES))
        several += len(made.masks) > 1
    assert seen.min() > 0.02 * seen.sum() and several > 30
    again = scenes.make("train", 7)
    assert np.array_equal(again.pixels, scenes.make("train", 7).pixels)
    assert not np.array_equal(again.labels, scenes.make("train", 7, seed=1).labels)


def test_test_scenes_are_of_other_photographs() -> None:
    of = {split: set(names) for split, names in scenes.PHOTOGRAPHS.items()}
    assert not of["train"] & of["test"] and len(of["train"]) == scenes_recipes.PHOTOGRAPHS
    for names in of.values():
        for name in names:
            height, width, _ = scenes.photograph(name).shape
            assert min(height, width) >= max(scenes.SIDES)


def test_they_are_read_as_the_recipes_say(
    tmp_path: Path,
) -> None:
    root = scenes.write_ade20k(tmp_path, 5, 3)
    of_boxes = scenes_recipes.trunk_of_boxes, scenes_recipes.boxes, scenes_recipes.boxes_pretrained
    for recipe in (
        scenes_recipes.trunk,
        scenes_recipes.random,
        scenes_recipes.pretrained,
        *of_boxes,
    ):
        check_recipe(recipe)
    data = scenes_recipes.random.data
    source = cast(Labelled, open_source(data, "test", root))
    assert tuple(source.classes) == scenes.CLASSES and len(source) == 3
    for recipe in (scenes_vit_64, scenes_swin_64):
        assert recipe.data == data and data.classes == len(scenes.CLASSES)
    # boxes and masks are of shapes, and the background is none
    assert scenes_mask_rcnn.data.classes == len(scenes.CLASSES) - 1
    made = scenes.make("test", 2)
    assert np.array_equal(source.labels(2, source.read(2).size), made.labels)
    photograph = np.asarray(source.read(2)).astype(int)
    assert abs(photograph - made.pixels).mean() < 8  # JPEG
    with pytest.raises(ValueError, match="train has 5 images, but .* has 480"):
        check_data(data, Run(data_root=root))
    with Image.open(root / "annotations/training/scene_00000.png") as opened:
        assert opened.mode == "L"
