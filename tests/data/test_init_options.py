"""`--init` with its options on the command line, and `bigvit samples --image-size`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pictures
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from bigvit.cli import main as bigvit
from bigvit.recipe.store import to_json
from bigvit.train import main

FILE = """
import json
from bigvit.recipe.store import recipe_from_json
wide = recipe_from_json(json.loads({wide!r}))
tuned = recipe_from_json(json.loads({tuned!r}))
"""


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of 2 x 4 patches, trained for an update, and one that starts from it."""
    root = tmp_path_factory.mktemp("stages")
    pictures.write_folders(root / "data", "train", pictures.jpegs(60))
    pictures.write_folders(root / "data", "val", pictures.jpegs(8))
    data = replace(pictures.RECIPE.data, image_size=(16, 32))
    wide = replace(pictures.RECIPE, data=data)
    tuned = replace(wide, starts_from="wide")
    texts = {"wide": json.dumps(to_json(wide)), "tuned": json.dumps(to_json(tuned))}
    (root / "stages.py").write_text(FILE.format(**texts))
    assert train(root, "wide", "--stop-after", 1) == 85
    assert bigvit(["export", str(root / "wide")]) == 0
    weights = load_file(root / "wide" / "export" / "model.safetensors")
    save_file(weights, root / "bare.safetensors")
    return root


def train(root: Path, name: str, *options: object) -> int:
    words = ("--engine", "single", "--data-root", root / "data", "--workers", 0, *options)
    run = () if "--run-dir" in options else ("--run-dir", root / name)
    return main([f"{root / 'stages.py'}:{name}", *map(str, (*words, *run))])


def test_the_grid_of_a_bare_file_is_given(stages: Path, tmp_path: Path, capfd: Any):
    init = ("--init", stages / "bare.safetensors", "--stop-after", 1, "--run-dir")
    assert train(stages, "tuned", *init, tmp_path / "a") == 2
    assert "8 positions are as many as the model's 2 x 4" in capfd.readouterr().err
    assert train(stages, "tuned", *init, tmp_path / "b", "--init-grid", 2, 4) == 85
    assert "bare.safetensors: as they are" in capfd.readouterr().out
    assert train(stages, "tuned", *init, tmp_path / "c", "--init-grid", 4, 2) == 85
    assert "bare.safetensors: positions resampled" in capfd.readouterr().out


def test_a_run_says_its_grid_itself(stages: Path, tmp_path: Path, capfd: Any):
    init = ("--init", stages / "wide", "--stop-after", 1, "--run-dir")
    assert train(stages, "tuned", *init, tmp_path / "a") == 85
    assert f"weights of {stages / 'wide'}: as they are" in capfd.readouterr().out
    assert train(stages, "tuned", *init, tmp_path / "b", "--init-grid", 4, 2) == 2
    assert "its grid is 2 x 4; leave --init-grid out" in capfd.readouterr().err
    assert train(stages, "tuned", *init, tmp_path / "c", "--init-ema") == 2
    assert "holds no average of the weights" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--init-ema",), "--init-ema: there is no --init"),
        (("--init-grid", 2, 4), "--init-grid: there is no --init"),
        (
            ("--init-grid", 0, 4, "--starts-from", "x", "--init", "timm:x"),
            "--init-grid",
        ),
    ],
)
def test_options_without_what_they_are_about_are_refused(
    stages: Path, tmp_path: Path, capfd: Any, options: tuple[object, ...], said: str
):
    assert train(stages, "wide", *options, "--run-dir", tmp_path / "x") == 2
    assert said in capfd.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("words", "side"), [(["64", "112"], (64, 112)), (["112"], (112, 112))])
def test_samples_are_drawn_in_another_size(
    stages: Path, tmp_path: Path, words: list[str], side: tuple[int, int]
):
    out = tmp_path / "samples.png"
    name = f"{stages / 'stages.py'}:wide"
    options = ["--data-root", str(stages / "data"), "--count", "1", "--out", str(out)]
    assert bigvit(["samples", name, *options, "--image-size", *words]) == 0
    with Image.open(out) as picture:
        shown = np.asarray(picture.convert("RGB"))[4 : 4 + side[0], 4 : 4 + side[1]]
        assert picture.width == side[1] + 8 and shown.shape[:2] == side
    assert (shown != 255).any(axis=(1, 2)).all(), "the image reaches down to its last row"


def test_a_size_that_no_patches_fit_is_refused(stages: Path, tmp_path: Path, capsys: Any):
    name, out = f"{stages / 'stages.py'}:wide", tmp_path / "x.png"
    options = ["--data-root", str(stages / "data"), "--out", str(out)]
    assert bigvit(["samples", name, *options, "--image-size", "20", "32"]) == 2
    assert "a multiple of model.patch_size" in capsys.readouterr().err and not out.exists()
