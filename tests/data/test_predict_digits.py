"""A model of digits is asked about files: as they are kept here, larger, and in colour."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from bigvit.cli import main
from bigvit.train import main as train

pytestmark = pytest.mark.usefixtures("own_signals")


def test_files_of_digits_are_the_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, files = tmp_path / "run", tmp_path / "files"
    words = ["digits_vit", "--run-dir", str(run), "--stop-after", "30", "--engine", "single"]
    assert train([*words, "--workers", "0"]) == 85
    files.mkdir()
    every = load_digits().images  # type: ignore
    for i, scan in enumerate(every[::6]):  # those for testing
        image = Image.fromarray(np.round(scan * (255 / 16)).astype(np.uint8))
        image.convert("RGB" if i % 2 else "L").save(files / f"{i:03}.png")
    Image.fromarray(np.zeros((30, 20, 3), np.uint8)).save(files / "large.png")
    capsys.readouterr()
    assert main(["evaluate", str(run), "--workers", "0"]) == 0
    right = json.loads(capsys.readouterr().out)["top1_correct"]
    assert main(["predict", str(run), str(files), "--workers", "0", "--top", "1"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    truth = load_digits().target[::6]  # type: ignore
    best = [each["classes"][0]["class"] for each in said[: len(truth)]]
    assert len(said) == len(truth) + 1
    assert sum(int(a) == b for a, b in zip(best, truth, strict=True)) == right > 50
