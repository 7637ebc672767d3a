"""`bigvit compare`: models side by side on a test set that others packed."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import CLASSES, RECIPE, bad_contents, jpegs, spread, write_folders
from PIL import Image
from saving import save

from bigvit.cli import main
from bigvit.data.loader import test_batches as batches_of
from bigvit.data.prepare import Normalise
from bigvit.data.sources import open_source
from bigvit.engines.single import SingleEngine
from bigvit.evaluate import evaluate_checkpoint
from bigvit.export.folder import export
from bigvit.ranks.joining import alone
from bigvit.recipe.store import to_json
from bigvit.visualize.compare import Answers

TEST = 23


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Test images, one of them cut off."""
    folder = tmp_path_factory.mktemp("photographs")
    write_folders(folder, "val", jpegs(TEST, first=60))
    content = bad_contents()["cut.jpg"]
    assert content is not None
    write_folders(folder, "val", [("000.jpg", 0, content)])
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs of the same name in different folders."""
    made: list[Path] = []
    for seed in (27, 28):
        run = tmp_path_factory.mktemp("of") / "run"
        here = replace(alone(), device=torch.device("cpu"))
        engine = SingleEngine(lambda seed=seed: spread(RECIPE, seed), RECIPE, here)
        save(engine, run / "checkpoints", 5, to_json(RECIPE), keep=1)
        (run / "recipe.json").write_text(json.dumps({"recipe": to_json(RECIPE)}))
        made.append(run)
    return made


def compared(capsys: pytest.CaptureFixture[str], *args: object) -> dict:
    assert main(["compare", *map(str, args), "--json", "--batch-size", "8"]) == 0
    return json.loads(capsys.readouterr().out)


def test_models_are_compared_image_by_image(
    root: Path, runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Against the models one after the other; and a run's export as timm loads it is the run."""
    folder = export(runs[0], tmp_path / "export")
    out = tmp_path / "apart.png"
    timms = f"timm:local-dir:{folder}"
    found = compared(
        capsys, *runs, timms, "--data-root", root, "--out", out, "--count", 3, "--workers", 2
    )
    one, two, timm = found["models"]
    assert (one, two) == ("run (1)", "run (2)") and found["images"] == TEST
    source = open_source(RECIPE.data, "test", root)
    right: list[torch.Tensor] = []
    shares: list[torch.Tensor] = []
    for name, run, seed in ((one, runs[0], 27), (two, runs[1], 28)):
        task, normalise = spread(RECIPE, seed).eval(), Normalise(RECIPE.data)
        batches = list(batches_of(source, RECIPE.data, 8, 0, 1, 0))
        with torch.no_grad():
            said = torch.cat([task.predict(normalise(b.images))[b.valid] for b in batches])
        truth = torch.cat([b.targets[b.valid] for b in batches])
        shares.append(said.double().softmax(1))
        right.append(said.argmax(1) == truth)
        of = found["models"][name]
        assert of["top1"] == pytest.approx(evaluate_checkpoint(run, 8, root, 0)["top1"])
        assert of["ece"] == pytest.approx(literal_ece(shares[-1], truth), abs=1e-6)
        assert found["disagreement"][name]["truth"] == pytest.approx(1 - of["top1"] / 100)
    differ = (shares[0].argmax(1) != shares[1].argmax(1)).double().mean().item()
    assert 0 < differ == pytest.approx(found["disagreement"][one][two])
    assert found["disagreement"][one][timm] == 0
    points = {tuple(pair["models"]): pair for pair in found["differences"]}[one, two]
    assert points["points"] == pytest.approx(100 * (right[1].sum() - right[0].sum()).item() / TEST)
    assert points["interval_95"][0] < points["points"] < points["interval_95"][1]
    assert out.read_bytes().startswith(b"\x89PNG")


def literal_ece(shares: torch.Tensor, truth: torch.Tensor) -> float:
    """Equations 2, 3 and 5 of arXiv:1706.04599, M = 15."""
    sure, best = shares.max(1)
    error = 0.0
    for m in range(1, 16):
        inside = (sure > (m - 1) / 15) & (sure <= m / 15)
        if inside.any():
            accuracy = (best == truth)[inside].double().mean()
            error += inside.sum() / len(truth) * abs(accuracy - sure[inside].mean())
    return float(error)


def test_classes_of_another_order_are_told_by_their_names(
    root: Path, runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """A run that numbered the same classes backwards, so that the same head means others."""
    names = open_source(RECIPE.data, "test", root).classes
    other = tmp_path / "backwards"
    shutil.copytree(runs[0], other)
    (other / "classes.json").write_text(json.dumps(names[::-1]))
    args = (runs[0], other, "--data-root", root, "--out", tmp_path / "apart.png")
    found = compared(capsys, *args)
    source = open_source(RECIPE.data, "test", root)
    batch = next(batches_of(source, RECIPE.data, 64, 0, 1, 0))
    with torch.no_grad():
        said = spread(RECIPE, 27).eval().predict(Normalise(RECIPE.data)(batch.images))[batch.valid]
    backwards = (len(CLASSES) - 1 - said.argmax(1) == batch.targets[batch.valid]).double().mean()
    assert found["models"]["backwards"]["top1"] == pytest.approx(100 * backwards.item())
    (other / "classes.json").write_text(json.dumps([*names[1:], "a unicorn"]))
    assert main(["compare", *map(str, args)]) == 2
    assert repr(names[0]) in capsys.readouterr().err


def test_a_set_with_some_of_the_classes_is_told_among_these(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """As ImageNet-A: the class it has not got is nobody's answer. Images are gray, and oblong."""
    root, paths = tmp_path / "some", list[Path]()
    (root / "val" / "flower").mkdir(parents=True)
    for number, size in enumerate([(40, 90), (7, 5), (64, 64)]):
        Image.linear_gradient("L").resize(size).save(root / "val" / "flower" / f"{number}.png")
    for number, run in enumerate(runs):
        paths.append(tmp_path / f"known_{number}")
        shutil.copytree(run, paths[-1])
        (paths[-1] / "classes.json").write_text(json.dumps(CLASSES))
    found = compared(capsys, *paths, "--data-root", root, "--out", tmp_path / "apart.png")
    assert found["images"] == 3
    assert all(model["top1"] == 100 for model in found["models"].values())


def test_an_interval_is_agresti_and_mins():
    """100 images: 30 the first alone has right, 15 the second alone. With half a case in each of
    four: middle 15 / 102, variance (46 - 15**2 / 102) / 102**2."""
    truth = torch.zeros(100, dtype=torch.int64)
    first, second = torch.zeros(100, dtype=torch.int64), torch.zeros(100, dtype=torch.int64)
    second[:30], first[30:45] = 1, 1
    best, half = torch.stack([first, second]), torch.full((2, 100), 0.5)
    answers = Answers(["a", "b"], ["x", "y"], truth, truth, best, half, half[0])
    points, low, high = answers.difference(0, 1)
    width = 1.959964 * np.sqrt(46 - 15**2 / 102) / 102
    assert points == pytest.approx(15)
    assert (low, high) == pytest.approx((100 * (15 / 102 - width), 100 * (15 / 102 + width)))
    assert answers.calibration_error(0) == pytest.approx(0.35)  # right 0.85 of the time, sure 0.5
    same = replace(answers, best=torch.stack([first, first]))
    points, low, high = same.difference(0, 1)
    assert points == 0 and low < 0 < high  # also where nothing differs it is not certain


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["RUN", "RUN"], "given twice"),
        (["RUN", "/nowhere"], "/nowhere"),
        (["timm:a", "timm:b"], "--recipe"),
        (["RUN", "timm:no_such_model"], "timm:no_such_model"),
        (["RUN", "timm:local-dir:EMPTY"], "timm:local-dir:"),
        (["RUN", "OTHER", "--count", "0"], "--count"),
        (["RUN", "OTHER", "--recipe", "none_such"], "none_such"),
        (["RUN", "OTHER", "--out", "/nowhere/apart.png"], "/nowhere/apart.png"),
        (["RUN", "OTHER", "--out", "apart.what"], "what"),
        (["RUN", "OTHER", "--out", "EMPTY"], "it is a folder"),
        (["RUN", "OTHER", "--out", "/proc/apart.png"], "nothing can be written"),
        (["RUN", "OTHER", "--recipe", "digits_vit"], "digits of 8 x 8 pixels"),
        (["RUN", "OTHER", "--recipe", "deit3_b16_in1k_224"], "1,000"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    args: list[str],
    said: str,
    root: Path,
    runs: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    named = {"RUN": str(runs[0]), "OTHER": str(runs[1]), "EMPTY": str(tmp_path)}
    for name, path in named.items():
        args = [arg.replace(name, path) for arg in args]
    assert main(["compare", *args, "--data-root", str(root)]) == 2
    err = capsys.readouterr().err.splitlines()
    assert said in err[-1] and err[-1].startswith("error: ")
