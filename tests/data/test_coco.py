"""COCO's lists are read as pycocotools and torchvision read them, or refused in one message."""

import json
from dataclasses import replace
from pathlib import Path

import cocos
import numpy as np
import pytest
from pycocotools.coco import COCO
from torchvision.datasets import CocoDetection

from bigvit.data.check import check_data
from bigvit.data.index import describe
from bigvit.data.sources import open_splits
from bigvit.recipe import Run

COUNT = 26  # images for training, of which 24 have objects


@pytest.fixture
def root(tmp_path: Path) -> Path:
    cocos.write(tmp_path / "coco", "train", range(COUNT))
    cocos.write(tmp_path / "coco", "val", range(100, 110))
    return tmp_path / "coco"


def test_images_classes_and_objects_are_the_libraries(root):
    check_data(cocos.DATA, Run(data_root=root))
    train, test = cocos.opened(root)
    assert train.classes == test.classes == ["person", "train", "dog"]
    assert (len(train), len(test)) == (24, 10)
    for source, split in ((train, "train"), (test, "val")):
        file = root / "annotations" / f"instances_{split}2017.json"
        theirs = CocoDetection(root / f"{split}2017", file)
        known = {theirs.coco.loadImgs(id)[0]["file_name"]: i for i, id in enumerate(theirs.ids)}
        number = {id: i for i, (id, _) in enumerate(sorted(cocos.CATEGORIES))}
        for index in range(len(source)):
            name = source.name(index)
            assert name.startswith(f"{split}2017/")
            image, listed = theirs[known[name.partition("/")[2]]]
            assert np.array_equal(np.asarray(source.read(index)), np.asarray(image))
            assert source.size(index) == (image.height, image.width)
            own = [each for each in listed if not each["iscrowd"]]
            found = source.objects(index)
            assert found.classes.tolist() == [number[each["category_id"]] for each in own]
            for box, mask, each in zip(found.boxes, found.masks, own, strict=True):
                left, top, width, height = each["bbox"]
                wide = [left, top, left + width, top + height]
                assert box == pytest.approx(np.clip(wide, 0, [*image.size] * 2))
                assert np.array_equal(mask, theirs.coco.annToMask(each))
            truth = source.truth(index)
            assert [each["iscrowd"] for each in truth] == [each["iscrowd"] for each in listed]
            assert [each["area"] for each in truth] == [each["area"] for each in listed]
            runs = [theirs.coco.annToRLE(each) for each in listed]
            assert [each["segmentation"] for each in truth] == runs


def test_images_without_objects_are_tested_and_not_trained_on(root):
    train, test = cocos.opened(root)
    listed = COCO(root / "annotations" / "instances_train2017.json")
    bare = {listed.loadImgs(1000 - number)[0]["file_name"] for number in (1, 2)}
    assert bare.isdisjoint(train.name(i).partition("/")[2] for i in range(len(train)))
    counts = sorted(len(test.objects(i).classes) for i in range(len(test)))
    assert counts[:2] == [0, 0] and counts[2] > 0


def change(root: Path, what, split: str = "train") -> None:
    path = root / "annotations" / f"instances_{split}2017.json"
    listed = json.loads(path.read_text())
    what(listed)
    path.write_text(json.dumps(listed))


def first(listed, **values):
    listed["annotations"][0].update(values)


def test_boxes_are_clipped_and_empty_ones_left_out(root):
    """As torchvision's reference does it."""

    def shift(listed):
        id = listed["annotations"][0]["image_id"]
        mask = [[1.0, 1, 30, 1, 30, 30]]
        base = {"iscrowd": 0, "area": 9, "image_id": id, "category_id": 7, "segmentation": mask}
        boxes = ([-5, 50, 30, 40], [100, 3, 7, 7], [3, 3, 0, 5], [-20, -20, 20, 30])
        lines = [{**base, "id": i, "bbox": box} for i, box in enumerate(boxes)]
        kept = [each for each in listed["annotations"] if each["image_id"] != id]
        line = {**base, "id": 9, "bbox": [1, 1, 9, 9], "segmentation": [[1.0, 1, 30, 1]]}
        listed["annotations"] = [*kept, *lines, line]

    change(root, shift)
    train, _ = cocos.opened(root)
    at = next(i for i in range(len(train)) if train.number(i) == 1000)
    height, width = train.size(at)
    found = train.objects(at)
    assert found.boxes.tolist() == [[0, 50, 25, min(90, height)]]
    assert found.classes.tolist() == [1]
    assert len(train.truth(at)) == 5


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda x: first(x, category_id=5), "annotation 7000 is of category 5, which it does not"),
        (lambda x: first(x, image_id=5), "annotation 7000 is of image 5, which it does not list"),
        (lambda x: first(x, bbox=[1, 2, float("nan"), 4]), "box or an area that is not of finite"),
        (lambda x: first(x, bbox=[1, 2, 3]), "is damaged, or not COCO's"),
        (lambda x: first(x, segmentation=[[1, 2, 3, 4, 5, 6, 7]]), "a polygon of 7 numbers"),
        (
            lambda x: first(x, segmentation={"size": [3, 4], "counts": [12]}),
            "annotation 7000 has a mask of another size than its image, 1000",
        ),
        (lambda x: x.pop("categories"), "is damaged, or not COCO's"),
        (lambda x: x["images"][1].update(id=1000), "lists images that have the same number"),
        (lambda x: x["images"][1].update(file_name="../x.jpg"), "names a file outside of it"),
        (lambda x: x["images"][1].update(file_name="x.jpg"), "1 of 26 images"),
        (lambda x: x["images"][1].update(width="w"), "is damaged"),
        (lambda x: x["categories"].append({"id": 99, "name": "dog"}), "have the same name"),
        (lambda x: x.update(annotations=[]), "lists no image with an object"),
    ],
)
def test_what_cannot_be_is_refused(root, what, said):
    change(root, what)
    with pytest.raises(ValueError, match="--data-root") as error:
        cocos.opened(root)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_other_layouts_and_none(root, tmp_path):
    for name in ("annotations/instances_train2017.json", "annotations/instances_val2017.json"):
        (root / name).rename(root / name.replace("2017", ""))
    for name in ("train2017", "val2017"):
        (root / name).rename(root / name.removesuffix("2017"))
    train, _ = cocos.opened(root)
    assert train.name(0).startswith("train/")
    with pytest.raises(ValueError, match="no lists of objects are there; the form that is read"):
        cocos.opened(tmp_path)
    with pytest.raises(ValueError, match="data-root is missing: where is miniature"):
        open_splits(cocos.DATA)


def test_other_numbers_are_said(root):
    data = replace(cocos.DATA, train_images=20, classes=80)
    with pytest.raises(ValueError, match="24 images, but miniature has 20") as error:
        check_data(data, Run(data_root=root))
    assert "--data.classes 3 --model.num-classes 3" in str(error.value)


def test_test_categories_in_another_order_are_numbered_as_trained(root):
    change(root, lambda x: x["categories"][1].update(id=50), "val")
    change(
        root,
        lambda x: [a.update(category_id=50) for a in x["annotations"] if a["category_id"] == 1],
        "val",
    )
    _, test = cocos.opened(root)
    assert test.classes == ["person", "train", "dog"]
    truth = COCO(root / "annotations" / "instances_val2017.json")
    for index in range(len(test)):
        names = [truth.cats[a["category_id"]]["name"] for a in truth.imgToAnns[test.number(index)]]
        assert [test.classes[a["category_id"]] for a in test.truth(index)] == names


def test_the_index_knows_of_every_mask(root):
    before = describe(cocos.opened(root)[0])
    change(root, lambda x: x["annotations"][0]["segmentation"][0].__setitem__(0, 1.25))
    from bigvit.data.sources.coco import open_coco

    open_coco.cache_clear()
    after = describe(cocos.opened(root)[0])
    assert {key for key in before if before[key] != after[key]} == {"contents"}
