"""A run that learns the classes of pixels: what it says, keeps, and shows."""

import json
from pathlib import Path

import numpy as np
import pytest
from dense_run import Say as Say
from dense_run import evaluations
from dense_run import say as say
from PIL import Image
from scenes import ade20k

from bigvit.dense.of_checkpoint import evaluate_scenes
from bigvit.train import main as train

OPTIONS = [
    *(
        "--data.classes",
        "4",
        "--model.num-classes",
        "4",
        "--data.zero",
        "not told",
        "--data.train-images",
        "6",
    ),
    *("--batch-size", "4", "--schedule.updates", "4", "--schedule.warmup-updates", "1"),
    *("--engine", "single", "--workers", "0", "--log-every", "1", "--evaluate-every", "1"),
    *("--checkpoint-every", "1", "--keep-best", "miou", "--ema", "0.9", "--evaluate-ema"),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ade20k(tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="module")
def run(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four updates, with what it said in said.txt beside it."""
    import contextlib
    import io

    folder = tmp_path_factory.mktemp("runs") / "run"
    where = ["--run-dir", str(folder), "--data-root", str(root)]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert train(["scenes_vit_64", *OPTIONS, *where]) == 0
    folder.with_name("said.txt").write_text(said.getvalue())
    return folder


def test_each_evaluation_is_written_and_said(run: Path) -> None:
    found = evaluations(run)
    assert len(found) == 4
    for line in found:
        assert line["images"] == 3 and 0 <= line["miou"] <= 100 and "ema_miou" in line
        assert set(line["class_iou"]) == {"wall", "building, edifice", "sky", "floor, flooring"}
    said = run.with_name("said.txt").read_text()
    last = found[-1]
    assert (
        f"mIoU {last['miou']:.2f} % (average {last['ema_miou']:.2f} %)  "
        f"pixels {last['pixel_accuracy']:.2f} %  of 3 test images" in said
    )
    assert f"bigvit evaluate {run}@best --pictures FILE" in said


def test_the_best_is_kept_by_mean_iou(run: Path, say: Say) -> None:
    ious = [line["miou"] for line in evaluations(run)]
    best = 1 + ious.index(max(ious))
    assert f"best miou {max(ious):.4g} after batch {best}" in run.with_name("said.txt").read_text()
    assert "the best by miou" in say("checkpoints", run)
    found = json.loads(say("status", run, "--json"))[0]
    assert found["best"]["metric"] == "miou"
    assert found["last"] == {"miou": ious[-1]} and found["epochs"] == 4


def test_a_checkpoint_is_evaluated_as_its_run_did(run: Path, root: Path, say: Say) -> None:
    found = json.loads(say("evaluate", run))
    last = evaluations(run)[-1]
    for key in ("images", "pixels", "miou", "pixel_accuracy", "mean_accuracy", "class_iou"):
        assert found[key] == last[key], key
    assert json.loads(say("evaluate", run, "--ema"))["miou"] == last["ema_miou"]
    several = json.loads(say("evaluate", run, "--scales", "0.75", "1", "1.5", "--flips"))
    assert several["scales"] == [0.75, 1, 1.5] and several["flips"] is True
    assert several == evaluate_scenes(run, 8, root, 0, scales=(0.75, 1.0, 1.5), flips=True) | {
        "images_per_second": several["images_per_second"]
    }
    larger = json.loads(say("evaluate", run, "--image-size", "48", "64"))
    assert larger["image_size"] == [48, 64]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--crop-ratio", "0.9"), "--crop-ratio: these are images with a class a pixel"),
        (("--labels", "real.json"), "--labels: these are images with a class a pixel"),
        (("--dispatch",), "--dispatch: these are images with a class a pixel"),
        (("--scales", "0"), "--scales: 0.0 is not allowed"),
        (("--pictures", "nowhere/a.png"), "--pictures nowhere/a.png: there is no folder"),
        (("--pictures", "a.strange"), "there is no picture of kind strange"),
    ],
)
def test_what_does_not_fit_is_refused(
    options: tuple[str, ...], said: str, run: Path, say: Say
) -> None:
    assert said in say("evaluate", run, *options, code=2)


def test_other_commands_say_what_to_do_instead(run: Path, root: Path, say: Say) -> None:
    for command in (("predict", run, "--data-root", root), ("compare", run, f"{run}@best")):
        said = say(*command, code=2)
        assert "its UperNet says more of an image than one class" in said
        assert "bigvit evaluate RUN --pictures FILE" in said


def test_pictures_show_images_classes_and_predictions(run: Path, tmp_path: Path, say: Say) -> None:
    out = tmp_path / "pictures.png"
    found = json.loads(say("evaluate", run, "--pictures", out, "--count", "2"))
    assert found["images"] == 3 and found["pictures"] == str(out)
    pixels = np.asarray(Image.open(out).convert("RGB"))
    assert pixels.std() > 20 and pixels.shape[1] > 3 * 61


def test_samples_show_classes_upon_images(root: Path, tmp_path: Path, say: Say) -> None:
    recipe = tmp_path / "mine.py"
    recipe.write_text(
        "from dataclasses import replace\n"
        "from bigvit.recipes.segmentation import scenes_vit_64 as base\n"
        "data = replace(base.data, classes=4, zero='not told', train_images=6)\n"
        "mine = replace(base, data=data, batch_size=4, model=replace(base.model, num_classes=4))\n"
    )
    out = tmp_path / "samples.png"
    say("samples", recipe, "--data-root", root, "--count", "3", "--out", out)
    assert np.asarray(Image.open(out).convert("RGB")).std() > 20


def test_a_report_has_the_classes(run: Path, tmp_path: Path, say: Say) -> None:
    out = tmp_path / "report.html"
    say("report", run, "--out", out)
    text = out.read_text()
    last = evaluations(run)[-1]
    assert "Best mIoU" in text and "Test IoU" in text and "top-1" not in text
    assert f"{last['class_iou']['building, edifice']:.2f}" in text
    assert "Predictions</h2>" in text and "Left out" not in text


def test_show_says_what_the_head_has(say: Say) -> None:
    text = say("show", "scenes_vit_64")
    assert "its dense head" in text and "UperNet" in text
    assert "scenes" in say("list", "scenes_vit", "--json")
