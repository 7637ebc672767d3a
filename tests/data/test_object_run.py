"""A run that learns boxes and masks: what it says, keeps, and shows."""

import contextlib
import io
import json
from pathlib import Path

import cocos
import numpy as np
import pytest
import torch
from dense_run import Say as Say
from dense_run import evaluations
from dense_run import say as say
from PIL import Image
from torchvision.models.resnet import Bottleneck, ResNet

import bigvit
from bigvit.checkpoint.manifest import step_name
from bigvit.checkpoint.model import read_checkpoint
from bigvit.train import main as train

OPTIONS = [
    *("--data.classes", "3", "--model.num-classes", "3", "--data.train-images", "24"),
    *("--data.test-images", "10", "--batch-size", "12", "--schedule.epochs", "2"),
    *("--schedule.steps", "1", "--schedule.warmup-updates", "1"),
    *("--data.image-size", "64", "96", "--data.shortest", "48", "64"),
    *("--data.test-shortest", "64", "--engine", "single", "--workers", "0", "--log-every", "1"),
    *("--keep-best", "mask_ap", "--ema", "0.5", "--evaluate-ema"),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cocos.written(tmp_path_factory.mktemp("coco"))


@pytest.fixture(scope="module")
def run(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four updates, with what it said in said.txt beside it."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    where = ["--run-dir", str(folder), "--data-root", str(root)]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert train(["scenes_mask_rcnn", *OPTIONS, *where]) == 0
    folder.with_name("said.txt").write_text(said.getvalue())
    return folder


def test_each_evaluation_is_written_and_said(run: Path, say: Say) -> None:
    found = evaluations(run)
    assert len(found) == 2
    for line in found:
        assert line["images"] == 10 and line["predicted_objects"] > 0
        assert all(0 <= line[name] <= 100 for name in ("box_ap", "mask_ap50", "ema_mask_ap"))
    said, last = run.with_name("said.txt").read_text(), found[-1]
    assert "64 x 96 px, turned for images that stand. 1 rank x" in said
    assert f"box AP {last['box_ap']:.2f} (average {last['ema_box_ap']:.2f})  50" in said
    assert f"bigvit evaluate {run}@best --pictures FILE" in said
    told = json.loads(say("status", run, "--json"))[0]
    assert told["last"] == {name: last[name] for name in ("box_ap", "mask_ap")}
    assert told["best"]["metric"] == "mask_ap"


def test_features_are_of_either_canvas(run: Path) -> None:
    trained = bigvit.load_trained(run)
    for size in ((64, 96), (96, 64)):
        maps = trained.features(torch.zeros(1, 3, *size))
        assert [(4 * x.shape[2], 4 * x.shape[3]) for x in maps[:1]] == [size]
    with pytest.raises(ValueError, match="images of 96 x 96 pixels: the model is for 64 x 96"):
        trained.features(torch.zeros(1, 3, 96, 96))


def test_a_checkpoint_is_evaluated_as_its_run_did(run: Path, say: Say, tmp_path: Path) -> None:
    out, last = tmp_path / "pictures.png", evaluations(run)[-1]
    found = json.loads(say("evaluate", run, "--pictures", out, "--count", "2"))
    for key in ("images", "predicted_objects", "box_ap", "mask_ap", "box_ap75"):
        assert found[key] == pytest.approx(last[key], abs=0.05), key
    pixels = np.asarray(Image.open(out).convert("RGB"))
    assert pixels.std() > 20 and pixels.shape[1] > 2 * 72
    average = json.loads(say("evaluate", run, "--ema"))
    assert average["box_ap"] == pytest.approx(last["ema_box_ap"], abs=0.05)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--crop-ratio", "0.9"), "--crop-ratio: these are images with objects"),
        (("--flips",), "--flips: these are images with objects"),
        (("--image-size", "64"), "--image-size: these are images with objects"),
        (("--pictures", "nowhere/a.png"), "--pictures nowhere/a.png: there is no folder"),
    ],
)
def test_what_does_not_fit_is_refused(
    options: tuple[str, ...], said: str, run: Path, say: Say
) -> None:
    assert said in say("evaluate", run, *options, code=2)


RESNET = """
from dataclasses import replace
from bigvit.recipes.detection import mask_rcnn_resnet50 as of, scenes_mask_rcnn as base
data = replace(base.data, classes=3, train_images=24, test_images=0)
model = replace(of.model, depths=(1, 1, 1, 1), num_classes=3)
(head,) = base.objectives
mine = replace(
    of, data=data, model=model, batch_size=12, objectives=(replace(head, normalised=False),),
    schedule=replace(of.schedule, epochs=1, warmup_updates=1, steps=()),
)
"""


def test_a_resnet_starts_from_torchvisions_and_stands_still_where_it_is_frozen(
    root: Path, tmp_path: Path
) -> None:
    """Two updates from a file as torchvision's: all statistics, the stem and the first stage keep
    their bits, and all else of the trunk is trained."""
    recipe, given, run = tmp_path / "mine.py", tmp_path / "resnet.pth", tmp_path / "run"
    recipe.write_text(RESNET)
    theirs = ResNet(Bottleneck, [1, 1, 1, 1])
    generator = torch.Generator().manual_seed(0)
    state = theirs.state_dict()
    for name, value in state.items():
        if "running" in name:
            low = 0.5 if name.endswith("var") else -0.1
            value.uniform_(low, low + 0.2, generator=generator)
    torch.save(state, given)
    words = [str(recipe), "--engine", "single", "--workers", "0"]
    words += ["--run-dir", str(run), "--data-root", str(root)]
    assert train(words) == 2  # without what it starts from
    assert train([*words, "--init", str(given)]) == 0
    weights = read_checkpoint(run / "checkpoints" / step_name(2)).model
    named = {n: v for n, v in state.items() if not n.startswith("fc.") and "tracked" not in n}
    assert named.keys() <= weights.keys()
    first = "conv1.", "bn1.", "layer1."
    still = {n for n in named if "running" in n or n.startswith(first)}
    assert {n for n, value in named.items() if torch.equal(weights[n], value)} == still


def test_other_commands_say_what_to_do_instead(run: Path, root: Path, say: Say) -> None:
    said = say("predict", run, "--data-root", root, code=2)
    assert "its MaskRCNN says more of an image than one class" in said


def test_samples_and_a_report_show_objects(run: Path, root: Path, tmp_path: Path, say: Say) -> None:
    recipe, out = tmp_path / "mine.py", tmp_path / "samples.png"
    recipe.write_text(
        "from dataclasses import replace\n"
        "from bigvit.recipes.detection import scenes_mask_rcnn as base\n"
        "data = replace(base.data, classes=3, train_images=24, test_images=10)\n"
        "mine = replace(base, data=data, batch_size=4, model=replace(base.model, num_classes=3))\n"
    )
    say("samples", recipe, "--data-root", root, "--count", "3", "--out", out)
    assert np.asarray(Image.open(out).convert("RGB")).std() > 20
    page = tmp_path / "report.html"
    say("report", run, "--out", page)
    text = page.read_text()
    assert "Best box AP" in text and "top-1" not in text and "Left out" not in text
    assert "Predictions</h2>" in text


def test_a_head_needs_its_data_and_whole_cells(say: Say) -> None:
    def refused(*options: str) -> str:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            words = ["scenes_mask_rcnn", "--data-root", "nowhere", *options]
            assert train(words) == 2
        return said.getvalue()

    assert "data.image_size: 100 is not allowed; it must be a multiple of 32" in refused(
        *("--data.image-size", "100"), *("--data.longest", "96")
    )
    assert "data.longest: 1333 is not allowed; it must be 1 to 96" in refused(
        "--data.longest", "1333"
    )
    assert "data.test_shortest: 96 is not allowed; it must be 1 to 64 (data.image_size)" in refused(
        *("--data.image-size", "64", "96", "--data.shortest", "64")
    )
