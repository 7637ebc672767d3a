"""Average precision is what pycocotools says of the list and of predictions in its words."""

import json
from pathlib import Path
from typing import Any

import ap_ranks
import cocos
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from bigvit.dense.average_precision import average_precision
from bigvit.ranks.joining import alone

RANKS = Path(__file__).with_name("ap_ranks.py")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("coco")
    cocos.write(root, "train", range(26))
    cocos.write(root, "val", range(100, 110))
    return root


def theirs(root: Path, told: dict, images: list[int]) -> list[float]:
    """Of boxes, from the list as it was written."""
    truth: Any = COCO(root / "annotations" / "instances_val2017.json")
    numbers = [number for number, _ in sorted(cocos.CATEGORIES)]
    lines = []
    for image, (boxes, scores, classes) in told.items():
        size = truth.imgs[image]
        boxes = boxes.clip(0, [size["width"], size["height"]] * 2)
        for (x, y, right, bottom), score, kind in zip(boxes, scores, classes, strict=True):
            box = [x, y, right - x, bottom - y]
            number = numbers[kind]
            lines.append({"image_id": image, "category_id": number, "bbox": box, "score": score})
    evaluation = COCOeval(truth, truth.loadRes(lines), "bbox")
    evaluation.params.imgIds = images
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return [100 * value for value in evaluation.stats[:6]]


def test_boxes_precision_is_pycocotools(root):
    predict, told = ap_ranks.shaken(root, 3.0)
    _, source = cocos.opened(root)
    found = average_precision(predict, source, cocos.DATA, 4, alone()).as_json()
    wanted = theirs(root, told, list(told))
    assert 10 < wanted[0] < 90
    names = ("box_ap", "box_ap50", "box_ap75", "box_ap_small")
    assert [found[name] for name in names] == pytest.approx(wanted[:4], abs=1e-2)
    assert not {"box_ap_medium", "box_ap_large"} & set(found) and wanted[4:] == [-100, -100]
    assert (found["images"], found["bad_images"]) == (10, 0)
    assert 0 < found["mask_ap75"] < found["mask_ap50"] < 90
    assert found["predicted_objects"] == sum(len(scores) for _, scores, _ in told.values())


def test_all_that_is_there_is_found(root):
    """By boxes and masks, but for what a mask of 28 x 28 cells cannot say."""
    predict, _ = ap_ranks.shaken(root, 0.0)
    _, source = cocos.opened(root)
    measured = average_precision(predict, source, cocos.DATA, 10, alone())
    found = measured.as_json()
    assert found["box_ap"] == pytest.approx(100) and found["mask_ap75"] == pytest.approx(100)
    assert found["mask_ap"] > 85
    assert measured.said(None).startswith("box AP 100.00  50 100.00  75 100.00  mask AP ")
    assert "(average 100.00)" in measured.said(found)


def test_images_that_cannot_be_read_do_not_count(root, tmp_path):
    import shutil

    other = tmp_path / "other"
    shutil.copytree(root, other)
    predict, told = ap_ranks.shaken(other, 3.0)
    _, source = cocos.opened(other)
    (other / source.name(7)).write_bytes(b"no image")
    found = average_precision(predict, source, cocos.DATA, 4, alone())
    assert found.bad == (source.name(7),) and found.images == 9
    rest = [source.number(i) for i in range(10) if i != 7]
    wanted = theirs(root, told, rest)
    assert found.as_json()["box_ap"] == pytest.approx(wanted[0], abs=1e-2)
    nothing = average_precision(
        lambda images: none(predict(images)), source, cocos.DATA, 4, alone()
    )
    assert nothing.as_json()["box_ap"] == nothing.as_json()["mask_ap50"] == 0


def none(said):
    return {name: 0 * values for name, values in said.items()}


@pytest.mark.parametrize(("world", "workers"), [(2, 0), pytest.param(4, 1, marks=pytest.mark.slow)])
def test_any_number_of_ranks_says_the_same_and_predicts_equally_often(
    world, workers, root, tmp_path, warm
):
    """On one canvas and on two, where it is told images that lie, or such that stand."""
    _, source = cocos.opened(root)
    kinds = (cocos.DATA, cocos.OBLONG)
    wanted = [
        average_precision(ap_ranks.shaken(root, 3.0, data)[0], source, data, 3, alone()).as_json()
        for data in kinds
    ]
    out = tmp_path / "rank"
    done = warm(world, RANKS, root, workers, out)
    assert done.code == 0, done.output
    said = [json.loads(out.with_suffix(f".{rank}").read_text()) for rank in range(world)]
    assert all([found for _, found in each] == wanted for each in said)
    for kind, data in enumerate(kinds):
        every = [each[kind][0] for each in said]
        assert len({len(shapes) for shapes in every}) == 1
        canvases = {(3, 3, *data.canvas(standing)) for standing in (False, True)}
        assert {tuple(shape) for shapes in every for shape in shapes} == canvases
