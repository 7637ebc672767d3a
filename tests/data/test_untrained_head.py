"""A run whose objectives train no classifier says so, wherever its classes are asked for."""

import json
from pathlib import Path

import pytest
from PIL import Image

from bigvit.cli import main
from bigvit.train import main as train

pytestmark = pytest.mark.usefixtures("own_signals")
SAID = "its classifier was not trained, as none of its objectives classifies"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untrained")
    size = "--model.embed-dim", "8", "--model.depth", "1", "--model.num-heads", "1"
    words = ["coarse_digits_grafit", *size, "--run-dir", str(folder / "run"), "--stop-after", "1"]
    assert train([*words, "--engine", "single", "--workers", "0"]) == 85
    Image.new("L", (8, 8)).save(folder / "0.png")
    return folder / "run"


@pytest.mark.parametrize(
    "words",
    [("evaluate", "RUN"), ("predict", "RUN", "IMAGE"), ("compare", "RUN", "OTHER", "--out", "OUT")],
)
def test_what_nobody_trained_is_not_told(
    words: tuple[str, ...], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (other,) = (run / "checkpoints").glob("step_*")
    places = {"RUN": run, "IMAGE": run.parent / "0.png", "OUT": tmp_path / "apart.png"}
    places |= {"OTHER": other}
    assert main([str(places.get(word, word)) for word in words]) == 2
    out, error = capsys.readouterr()
    assert out == "" and SAID in error and error.count("error:") == 1


def test_features_are_exported_and_reported(run: Path, tmp_path: Path) -> None:
    assert main(["export", str(run), "--out", str(tmp_path / "export")]) == 0
    assert "Its classifier was not trained" in (tmp_path / "export/README.md").read_text()
    assert json.loads((tmp_path / "export/config.json").read_text())["num_classes"] == 2
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    assert "Confusion" not in (tmp_path / "report.html").read_text()
