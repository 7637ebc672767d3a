"""A run with a memory of its training images goes on with no others, of as many, unless told to."""

from dataclasses import replace
from pathlib import Path

import pytest
from pictures import CLASSES, RECIPE, jpegs, write_folders

from bigvit.checkpoint.manifest import read_manifest
from bigvit.data import sources
from bigvit.recipe import Grafit, Projector
from bigvit.train import main

pytestmark = pytest.mark.usefixtures("own_signals")

GRAFIT = Grafit(
    weight=1.0,
    knn=1.0,
    instance=0.0,
    sigma=0.05,
    projector=Projector(hidden_dim=None, norm="none", dim=4),
    predictor=None,
    views=1,
)


def train(folder: Path, root: Path, *args: object) -> int:
    sources._open.cache_clear()  # pyright: ignore
    path = folder / "own.py"
    recipe = replace(RECIPE, objectives=(GRAFIT,), ema=None)
    path.write_text(f"from bigvit.recipe import *\nphotos = {recipe!r}\n")
    options = ("--data-root", root, "--run-dir", folder / "run", "--engine", "single")
    return main([f"{path}:photos", *map(str, (*options, "--workers", 0, *args))])


def test_a_memory_of_other_images_is_refused_or_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    roots = tmp_path / "data", tmp_path / "others"
    for root, first in zip(roots, (0, 200), strict=True):
        write_folders(root, "train", jpegs(60, first=first))
        write_folders(root, "val", jpegs(6, first=first + 60))
    assert {file.name for file in (roots[0] / "train").iterdir()} == set(CLASSES)
    assert train(tmp_path, roots[0], "--stop-after", 2) == 85
    (checkpoint,) = (tmp_path / "run/checkpoints").glob("step_*")
    rows = {row.name: row for row in read_manifest(checkpoint).tensors if "kept" in row.kinds}
    assert [list(row.shape) for row in rows.values()] == [[60, 4]]
    capfd.readouterr()
    again = "--resume", "auto", "--stop-after", 4
    assert train(tmp_path, roots[1], *again) == 2
    said = capfd.readouterr().err
    assert "is of a run on other data" in said and said.count("error:") == 1
    assert "--allow-change index" in said
    assert train(tmp_path, roots[0], *again) == 85
    assert "the memory of embeddings" not in capfd.readouterr().out
    again = "--resume", "auto", "--stop-after", 6
    assert train(tmp_path, roots[1], *again, "--allow-change", "index") == 85
    assert "the memory of embeddings is of the training images" in capfd.readouterr().out
