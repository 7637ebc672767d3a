"""Mean intersection over union: against mmsegmentation's steps and scikit-learn's formulas, over
windows, scales and ranks."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from iou_ranks import predictor
from numpy.typing import NDArray
from PIL import Image
from scenes import DATA, ade20k, png
from sklearn.metrics import confusion_matrix, jaccard_score
from torch import Tensor

from bigvit.data.pixel_labels import WholeScene, fitted
from bigvit.data.prepare import Normalise
from bigvit.data.sources import Source, open_source
from bigvit.data.sources.segmentation import Labelled
from bigvit.dense.mean_iou import SCALES, Overlaps, mean_iou
from bigvit.dense.windows import Seeing, starts
from bigvit.ranks.joining import alone
from bigvit.recipe import Segmentation
from bigvit.recipe.scene import UNTOLD
from tests.conftest import Warm

CPU = replace(alone(), device=torch.device("cpu"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven test images, one of which has no map that can be read."""
    root = ade20k(tmp_path_factory.mktemp("scenes"), test=7)
    (root / "annotations/validation/ADE_val_00000004.png").write_bytes(png(np.full((9, 9), 1)))
    return root


@pytest.fixture(scope="module")
def source(root: Path) -> Source:
    return open_source(DATA, "test", root)


def slid(image: Tensor, data: Segmentation) -> Tensor:
    """mmsegmentation 0.30, `slide_inference`, of an image (1, 3, H, W) as it is normalised: its
    loops over a grid, a count matrix, and a division. But what is smaller than a window is filled
    up with 0."""
    net, (crop_h, crop_w), stride = predictor(), cast(Any, data.image_size), data.stride
    full_h, full_w = image.shape[2:]
    image = F.pad(image, (0, max(0, crop_w - full_w), 0, max(0, crop_h - full_h)))
    h_img, w_img = image.shape[2:]
    h_grids = max(h_img - crop_h + stride - 1, 0) // stride + 1
    w_grids = max(w_img - crop_w + stride - 1, 0) // stride + 1
    preds = image.new_zeros((1, data.classes, h_img, w_img))
    count_mat = image.new_zeros((1, 1, h_img, w_img))
    for h_idx in range(h_grids):
        for w_idx in range(w_grids):
            y1, x1 = h_idx * stride, w_idx * stride
            y2, x2 = min(y1 + crop_h, h_img), min(x1 + crop_w, w_img)
            y1, x1 = max(y2 - crop_h, 0), max(x2 - crop_w, 0)
            logits = net(image[:, :, y1:y2, x1:x2])
            preds += F.pad(logits, (x1, w_img - x2, y1, h_img - y2))
            count_mat[:, :, y1:y2, x1:x2] += 1
    assert (count_mat == 0).sum() == 0
    return (preds / count_mat)[:, :, :full_h, :full_w]


def expected(
    source: Source, data: Segmentation, scales: tuple[float, ...] = (1.0,), flips: bool = False
) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Of each image that can be read, the classes that are predicted, and its own."""
    predicted, own = list[NDArray[Any]](), list[NDArray[Any]]()
    for i in range(len(source)):
        if i == 3:
            continue
        image = source.read(i)
        labels = cast(Labelled, source).labels(i, image.size)
        total = torch.zeros(())
        for scale in scales:
            size = fitted(data, image.size, scale)
            pixels = np.asarray(image.resize(size, Image.Resampling.BILINEAR)).transpose(2, 0, 1)
            whole = Normalise(data)(torch.from_numpy(pixels.copy())[None])
            for flip in (False, True)[: 1 + flips]:
                logits = slid(whole.flip(3) if flip else whole, data)
                logits = logits.flip(3) if flip else logits
                logits = F.interpolate(logits, labels.shape, mode="bilinear", align_corners=False)
                total = total + logits.softmax(dim=1)
        predicted.append(total.argmax(dim=1)[0].numpy())
        own.append(labels)
    return predicted, own


def counted(
    source: Source, batch: int, data: Segmentation = DATA, workers: int = 0, **more: Any
) -> Overlaps:
    net = predictor()
    return mean_iou(lambda x: {"logits": net(x)}, source, data, batch, CPU, workers, **more)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_pixels_are_those_that_mmsegmentation_and_scikit_learn_count(
    source: Source, batch: int
) -> None:
    predicted, own = expected(source, DATA)
    told = np.concatenate([each.ravel() != UNTOLD for each in own])
    true = np.concatenate([each.ravel() for each in own])[told]
    said = np.concatenate([each.ravel() for each in predicted])[told]
    found = counted(source, batch)
    assert found.images == 6 and found.bad == ("images/validation/ADE_val_00000004.jpg",)
    matrix = confusion_matrix(true, said, labels=range(DATA.classes))
    assert found.intersections == tuple(matrix.diagonal())
    assert found.own == tuple(matrix.sum(axis=1)) and found.predicted == tuple(matrix.sum(axis=0))
    assert min(found.intersections) > 0, "counts tell"
    ious: Any = jaccard_score(true, said, average=cast(Any, None), labels=range(DATA.classes))
    shown = found.as_json()
    assert list(shown["class_iou"].values()) == pytest.approx(100 * ious)
    assert shown["miou"] == pytest.approx(100 * ious.mean())
    assert shown["pixel_accuracy"] == pytest.approx(100 * (true == said).mean())
    assert shown["mean_accuracy"] == pytest.approx(
        100 * (matrix.diagonal() / matrix.sum(axis=1)).mean()
    )
    assert list(shown["class_iou"]) == ["wall", "building, edifice", "sky", "floor, flooring"]


def test_several_scales_and_mirrored_are_averaged_as_probabilities(source: Source) -> None:
    predicted, own = expected(source, DATA, SCALES, True)
    seen = dict[int, Tensor]()
    found = counted(
        source, 3, scales=SCALES, flips=True, seen=lambda at, x: seen.update({at.id: x})
    )
    alike = [
        (seen[i].numpy() == each).mean()
        for i, each in zip([0, 1, 2, 4, 5, 6], predicted, strict=True)
    ]
    # sums in another order round otherwise: a pixel or two lie between two classes
    assert np.mean(alike) > 0.9999
    assert sum(found.own) == sum(int((each != UNTOLD).sum()) for each in own)
    assert found.intersections != counted(source, 3).intersections


def test_an_image_smaller_than_a_window_is_filled_up(source: Source) -> None:
    data = replace(DATA, shortest=20, longest=30)
    predicted, own = expected(source, data)
    right = sum(int(((a == b) & (b != UNTOLD)).sum()) for a, b in zip(predicted, own, strict=True))
    assert sum(counted(source, 4, data).intersections) == right


def test_data_processes_change_nothing(source: Source) -> None:
    assert counted(source, 2, workers=2) == counted(source, 2)


def test_a_class_that_is_nowhere_does_not_count() -> None:
    found = Overlaps(1, ("a", "b", "c", "d"), (5, 0, 0, 0), (8, 2, 0, 0), (6, 0, 4, 0), (), 0)
    shown = found.as_json()
    ious = {"a": 100 * 5 / 9, "b": 0, "c": 0, "d": None}
    assert shown["class_iou"] == pytest.approx(ious)
    assert shown["miou"] == pytest.approx(100 * 5 / 27)
    assert shown["mean_accuracy"] == pytest.approx(100 * 5 / 12)  # of a and c
    assert shown["pixel_accuracy"] == 50
    json.dumps(shown, allow_nan=False)
    assert found.said(None) == "mIoU 18.52 %  pixels 50.00 %"
    assert found.said({"miou": 20.0}).startswith("mIoU 18.52 % (average 20.00 %)")


def test_windows_reach_every_pixel() -> None:
    for length in range(1, 40):
        for window in (1, 7, 16):
            for stride in range(1, window + 1):
                found = starts(length, window, stride)
                seen = {i for start in found for i in range(start, start + window)}
                assert seen >= set(range(length)) and len(set(found)) == len(found)
                assert max(found) + window <= max(length, window)
                assert len(found) == math.ceil(max(0, length - window) / stride) + 1


def test_fillers_are_predicted_and_not_counted() -> None:
    """A rank without images predicts as often as the others."""
    asked = list[Tensor]()

    def predict(images: Tensor) -> dict[str, Tensor]:
        asked.append(images)
        return {"logits": predictor()(images)}

    seeing = Seeing([], DATA, False, Normalise(DATA))
    assert seeing.batches(3) == 0
    assert list(seeing.predicted(predict, 3, 2)) == []
    assert [each.shape for each in asked] == [(3, 3, 24, 32)] * 2
    empty = WholeScene(5, [], np.zeros((0, 0), np.uint8))
    assert Seeing([empty], DATA, True, Normalise(DATA)).batches(3) == 0


@pytest.mark.parametrize(("several", "workers"), [("one", 1), ("several", 0)])
def test_ranks_count_the_same_and_predict_equally_often(
    root: Path, warm: Warm, several: str, workers: int, tmp_path: Path
) -> None:
    """Exactly: also where a rank has no image left, or another number of windows."""
    script = Path(__file__).with_name("iou_ranks.py")
    found = dict[int, list[Any]]()
    for world in (1, 2, 4, 5):
        out = tmp_path / str(world)
        ended = warm(world, script, root, workers, several, out, timeout=120)
        assert ended.code == 0, ended.output
        told = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(world)]
        assert all(each == told[0] for each in told), "calls and numbers are the same on all ranks"
        found[world] = told[0]
    assert all(numbers == found[1][1] for _, numbers, _ in found.values())
    calls = [found[world][0] for world in (1, 2, 4, 5)]
    assert calls[0] > calls[1] > calls[2] > 1
