"""`bigvit predict`: what it says is what `bigvit evaluate` counts, of runs, exports and files."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from pictures import bad_contents, jpegs, write_folders

from bigvit.cli import main
from bigvit.evaluate import evaluate_checkpoint
from bigvit.train import main as train

FILE = """
import sys
sys.path.insert(0, {data!r})
from dataclasses import replace
from pictures import DATA, RECIPE
photos = replace(RECIPE, data=replace(DATA, image_size=(16, 32)))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs, and a run of nine updates on them with its export."""
    root = tmp_path_factory.mktemp("photographs")
    write_folders(root / "data", "train", jpegs(60))
    write_folders(root / "data", "val", jpegs(21, first=60))
    (root / "own.py").write_text(FILE.format(data=str(Path(__file__).parent)))
    how = ["--engine", "single", "--workers", "0", "--run-dir", str(root / "run")]
    assert train([f"{root / 'own.py'}:photos", *how, "--data-root", str(root / "data")]) == 0
    assert main(["export", str(root / "run"), "--out", str(root / "export")]) == 0
    return root


def lines(capsys: Any, *words: object) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["predict", *map(str, words), "--workers", "0"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_data_set_is_counted_as_evaluate_counts_it(root: Path, capsys: Any) -> None:
    said = lines(capsys, root / "run", "--data-root", root / "data", "--batch-size", 4)
    assert len(said) == 21
    right = sum(each["classes"][0]["class"] == each["image"].split("/")[-2] for each in said)
    counted = evaluate_checkpoint(root / "run", 4, root / "data")
    assert counted["top1"] == pytest.approx(100 * right / 21)
    for each in said:
        shares = [one["probability"] for one in each["classes"]]
        assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1, abs=1e-6)
        assert {one["class"] for one in each["classes"]} == {"china", "flower"}
        assert {one["number"] for one in each["classes"]} == {0, 1}


def test_an_export_says_the_same_without_the_run(root: Path, capsys: Any) -> None:
    by_run = lines(capsys, root / "run", root / "data" / "val")
    by_export = lines(capsys, root / "export", root / "data" / "val")
    assert [each["image"] for each in by_export] == [each["image"] for each in by_run]
    assert len(by_run) == 21 and by_run[0]["image"].startswith(str(root))
    for one, other in zip(by_run, by_export, strict=True):
        for mine, its in zip(one["classes"], other["classes"], strict=True):
            assert mine["class"] == its["class"] and mine["number"] == its["number"]
            assert mine["probability"] == pytest.approx(its["probability"], abs=1e-5)


def test_files_in_csv_and_what_cannot_be_read(root: Path, tmp_path: Path, capsys: Any) -> None:
    name, _, content = jpegs(1)[0]
    good, bad = tmp_path / 'my "own", photo é.jpg', tmp_path / "bad.jpg"
    good.write_bytes(content)
    bad.write_bytes(bad_contents()["text.jpg"] or b"")
    out = tmp_path / "said.csv"
    words = ["predict", root / "run", bad, good, "--top", 1, "--csv", "--out", out]
    assert main([*map(str, words), "--workers", "0"]) == 0
    assert "warning: 1 image cannot be read: " in capsys.readouterr().err
    rows = list(csv.reader(io.StringIO(out.read_text())))
    assert rows[0] == ["image", "class1", "probability1", "error"]
    assert rows[1] == [str(bad), "", "", "cannot be read"] and rows[2][3] == ""
    assert rows[2][0] == str(good) and len(rows) == 3
    assert main(["predict", str(root / "run"), str(bad), "--workers", "0"]) == 2
    said = capsys.readouterr()
    assert f"none of the 1 images can be read ({bad}, ...)" in said.err
    assert json.loads(said.out)["error"] == "cannot be read"
    assert rows[2][1] in ("china", "flower") and 0.5 <= float(rows[2][2]) <= 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN"], "name image files and folders, or a data set by --data-root, not both"),
        (["RUN", "DATA", "--data-root", "DATA"], "not both"),
        (["RUN", "DATA/nothing.jpg"], "nothing.jpg: there is no such file or folder"),
        (["RUN", "EMPTY"], "there are no images in it"),
        (["RUN", "DATA", "--top", "3"], "--top 3: the model has 2 classes; choose no more"),
        (["EMPTY", "DATA"], "EMPTY"),
        (["EXPORT", "DATA", "--ema"], "has no average; leave it out"),
        (["RUN", "DATA", "--out", "EMPTY/a/b"], "there is no folder"),
        (["RUN", "DATA", "--out", "OWN"], "it is there already, and is written over where it ends"),
    ],
)
def test_other_input_is_refused(
    words: list[str], message: str, root: Path, tmp_path: Path, capsys: Any
) -> None:
    places = {"RUN": "run", "DATA": "data", "EXPORT": "export", "EMPTY": "empty", "OWN": "own.py"}
    (root / "empty").mkdir(exist_ok=True)
    (root / "own.py").write_text("precious")
    for word, name in places.items():
        words = [each.replace(word, str(root / name)) for each in words]
        message = message.replace(word, str(root / name))
    assert main(["predict", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("error:") == 1
    assert (root / "own.py").read_text() == "precious"
